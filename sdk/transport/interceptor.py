"""The interceptor: every gRPC call passes it, and no other code decides who may call.

A call is authorised when its headers arrive. Until then it has no thread and its request is not
received, so a refused call costs neither.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias, final

import grpc

from gradmesh.protos.errors import Draining, Forbidden, MeshError
from gradmesh.sdk.transport.boundary import internal_error, to_status
from gradmesh.sdk.transport.call import Caller, set_caller
from gradmesh.sdk.transport.metrics import RpcMetrics
from gradmesh.sdk.transport.request_body import ClientGone
from gradmesh.sdk.transport.security import CallerCheck, is_open
from gradmesh.sdk.transport.server_threads import Place, ServerThreads

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

# Who calls, as long as only the certificate can say and the call has no context yet.
_CERTIFIED = Caller("certificate")


@final
class CallInterceptor(grpc.ServerInterceptor):  # type: ignore[misc,unused-ignore]
    """Wraps every handler of a server: authorisation, metrics, and errors as statuses.

    Handlers of unary rpcs are wrapped as handlers of a stream of requests, which read the request
    themselves.

    All rpcs are unary but two: Exchange, whose calls pass through `Session`, and the health
    service's Watch, which is open to everyone.

    Args:
        check: Decides who may call.
        metrics: Where calls are counted.
        threads: The threads that serve the calls.
    """

    def __init__(self, check: CallerCheck, metrics: RpcMetrics, threads: ServerThreads) -> None:
        self._check = check
        self._metrics = metrics
        self._threads = threads
        self._idle = threading.Condition()  # guards _active and _closed
        self._active = 0
        self._closed = False

    def refuse(self) -> None:
        """Refuse new calls from now on."""
        with self._idle:
            self._closed = True

    def wait_idle(self, timeout_s: float) -> None:
        """Wait until the calls under way have ended, or the time is over."""
        with self._idle:
            self._idle.wait_for(lambda: self._active == 0, timeout_s)

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], "Handler | None"],
        details: grpc.HandlerCallDetails,
    ) -> "Handler | None":
        """Return the handler of a call, wrapped; called when the headers have arrived."""
        handler = continuation(details)
        path = str(details.method)
        if handler is None or is_open(path):
            return handler
        metadata = dict(details.invocation_metadata or ())
        try:
            if self._closed:
                raise _draining()
            caller = self._check.admit(path, metadata, None)
            needs_certificate = self._check.needs_certificate
            is_known = caller.is_authenticated or not needs_certificate
            place = self._threads.take(path, caller if is_known else _CERTIFIED)
        except MeshError as error:
            return self._refusal(path, error)
        except Exception:
            return self._refusal(path, internal_error(path))
        wrap = self._guard_stream if handler.response_streaming else self._guard_unary

        def admit(context: grpc.ServicerContext) -> Caller:
            if context.peer().startswith("unix"):
                raise Forbidden("this socket is for health probes of the process itself")
            if needs_certificate:
                return self._check.admit(path, metadata, context.auth_context)
            return caller

        return wrap(handler, path, admit, place)

    def _refusal(self, path: str, failure: MeshError) -> "Handler":
        """Return a handler that responds at once with an error, and receives no request."""
        self._metrics.observe(path, failure.reason, 0.0, 0, 0)

        def refuse(requests: Any, context: grpc.ServicerContext) -> None:
            context.abort_with_status(to_status(failure))

        behaviour: Any = refuse
        behaviour.experimental_thread_pool = self._threads.inline
        return grpc.stream_unary_rpc_method_handler(behaviour)

    def _guard_unary(
        self,
        handler: "Handler",
        path: str,
        admit: Callable[[grpc.ServicerContext], Caller],
        place: Place,
    ) -> "Handler":
        inner: Any = handler.unary_unary

        def guarded(requests: Any, context: grpc.ServicerContext) -> bytes:
            begun = time.perf_counter()
            failure: MeshError | None = None
            request = response = b""
            try:
                set_caller(admit(context))
                request = place.body.read(requests, context)
                with self._under_way():
                    response = inner(request, context)
            except MeshError as error:
                failure = error
            except ClientGone as error:
                context.abort(grpc.StatusCode.CANCELLED, str(error))
            # A handler that calls sys.exit must not leave its client waiting until the deadline.
            except BaseException:
                failure = internal_error(path)
            self._observe(path, failure, time.perf_counter() - begun, request, response)
            if failure is not None:
                context.abort_with_status(to_status(failure))
            self._threads.limit_response(context, len(response))
            return response

        behaviour: Any = guarded
        behaviour.experimental_thread_pool = place.pool
        return grpc.stream_unary_rpc_method_handler(behaviour)

    def _guard_stream(
        self,
        handler: "Handler",
        path: str,
        admit: Callable[[grpc.ServicerContext], Caller],
        place: Place,
    ) -> "Handler":
        """Wrap a stream of calls; `Session` handles the errors of each call."""
        inner: Any = handler.stream_stream

        def guarded(requests: Any, context: grpc.ServicerContext) -> Any:
            try:
                set_caller(admit(context))
                return inner(requests, context)
            except MeshError as error:
                failure = error
            except BaseException:
                failure = internal_error(path)
            self._metrics.observe(path, failure.reason, 0.0, 0, 0)
            context.abort_with_status(to_status(failure))

        behaviour: Any = guarded
        behaviour.experimental_thread_pool = place.pool
        return grpc.stream_stream_rpc_method_handler(behaviour)

    @contextmanager
    def _under_way(self) -> Iterator[None]:
        with self._idle:
            if self._closed:
                raise _draining()
            self._active += 1
        try:
            yield
        finally:
            with self._idle:
                self._active -= 1
                self._idle.notify_all()

    def _observe(
        self, path: str, failure: MeshError | None, seconds: float, request: Any, response: Any
    ) -> None:
        status = failure.reason if failure is not None else "OK"
        sent = len(response) if isinstance(response, bytes) else 0
        received = len(request) if isinstance(request, bytes) else 0
        self._metrics.observe(path, status, seconds, sent, received)


def _draining() -> Draining:
    return Draining("this process is draining and accepts no new calls; try again later")

"""The server's border: who may call, what a failure looks like outside, and the figures.

Handlers raise errors of the catalogue; only this file turns them into statuses. Anything else that
a handler raises is logged with a request id and leaves as a bare "internal error". All rpcs are
unary but two: Exchange, which carries calls that have a border of their own, and the health
service's, which everybody may watch.
"""

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import grpc

from gradmesh.protos.errors import Draining, GradmeshError, InternalError
from gradmesh.sdk.transport.caller import set_caller
from gradmesh.sdk.transport.metrics import RpcMetrics
from gradmesh.sdk.transport.security import CallerCheck, is_open
from gradmesh.sdk.transport.status import to_status

_log = logging.getLogger(__name__)

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class Border(grpc.ServerInterceptor):  # type: ignore[misc,unused-ignore]
    """Wraps every handler of a server.

    Args:
        check: Decides who may call.
        metrics: Where calls are counted.
    """

    def __init__(self, check: CallerCheck, metrics: RpcMetrics) -> None:
        self._check = check
        self._metrics = metrics
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
        """Return the handler of a call, wrapped."""
        handler = continuation(details)
        if handler is None:
            return handler
        path = str(details.method)
        metadata = {str(k): str(v) for k, v in details.invocation_metadata or ()}
        if handler.unary_unary is None:
            return handler if is_open(path) else self._guard_stream(handler, path, metadata)
        inner = handler.unary_unary

        def guarded(request: Any, context: grpc.ServicerContext) -> Any:
            begun = time.perf_counter()
            failure: GradmeshError | None = None
            response: Any = b""
            try:
                set_caller(self._check.admit(path, metadata, context.auth_context))
                with self._under_way(path):
                    response = inner(request, context)
            except GradmeshError as error:
                failure = error
            # A handler that calls sys.exit must not leave its caller waiting until the deadline.
            except BaseException:
                failure = unforeseen(path)
            self._observe(path, failure, time.perf_counter() - begun, request, response)
            if failure is not None:
                context.abort_with_status(to_status(failure))
            return response

        return grpc.unary_unary_rpc_method_handler(
            guarded, handler.request_deserializer, handler.response_serializer
        )

    def _guard_stream(self, handler: "Handler", path: str, metadata: dict[str, str]) -> "Handler":
        """Wrap a stream of calls; what happens in it is the stream's own matter."""
        inner: Any = handler.stream_stream

        def guarded(requests: Any, context: grpc.ServicerContext) -> Any:
            try:
                set_caller(self._check.admit(path, metadata, context.auth_context))
                return inner(requests, context)
            except GradmeshError as error:
                failure = error
            except BaseException:
                failure = unforeseen(path)
            self._metrics.observe(path, failure.reason, 0.0, 0, 0)
            context.abort_with_status(to_status(failure))

        behaviour: Any = guarded
        behaviour.experimental_thread_pool = getattr(inner, "experimental_thread_pool", None)
        return grpc.stream_stream_rpc_method_handler(behaviour)

    @contextmanager
    def _under_way(self, path: str) -> Iterator[None]:
        with self._idle:
            # While a process drains, probes want to hear "not serving", not a failure.
            if self._closed and not is_open(path):
                raise Draining("this process is leaving and takes no new calls; try again later")
            self._active += 1
        try:
            yield
        finally:
            with self._idle:
                self._active -= 1
                self._idle.notify_all()

    def _observe(
        self, path: str, failure: GradmeshError | None, seconds: float, request: Any, response: Any
    ) -> None:
        status = failure.reason if failure is not None else "OK"
        sent = len(response) if isinstance(response, bytes) else 0
        received = len(request) if isinstance(request, bytes) else 0
        self._metrics.observe(path, status, seconds, sent, received)


def unforeseen(path: str) -> InternalError:
    """Log the exception being handled; return what the caller may know of it."""
    request_id = uuid.uuid4().hex[:12]
    _log.exception("unforeseen error in %s, request %s", path, request_id)
    return InternalError(f"internal error, request {request_id}", request_id=request_id)

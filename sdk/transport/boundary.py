"""The boundary of a process: errors of the catalogue inside, statuses of gRPC and lanes outside.

Handlers raise errors of the catalogue. The interceptor turns them into statuses, and clients turn
statuses back. Anything else that a handler raises is logged with a request id and leaves as a bare
"internal error".
"""

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from gradmesh.protos import errors
from gradmesh.protos.errors import Draining, InternalError, MeshError
from gradmesh.sdk.transport.call import set_caller
from gradmesh.sdk.transport.metrics import RpcMetrics
from gradmesh.sdk.transport.security import CallerCheck, is_open

DOMAIN = "gradmesh"
_DETAILS_KEY = "grpc-status-details-bin"

# A status travels in HTTP/2 headers, of which a gRPC client accepts 8 KiB by default, and contains
# the message twice. A longer one would arrive as an error of gRPC itself.
_MAX_MESSAGE_BYTES = 2000
_MAX_METADATA_BYTES = 200

# Errors for statuses without our details, which come from gRPC itself, not from a handler.
_BARE: dict[grpc.StatusCode, type[MeshError]] = {
    grpc.StatusCode.CANCELLED: errors.Unreachable,
    grpc.StatusCode.UNKNOWN: errors.InternalError,
    grpc.StatusCode.INVALID_ARGUMENT: errors.InvalidRequest,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.DeadlineExceeded,
    grpc.StatusCode.NOT_FOUND: errors.InternalError,
    grpc.StatusCode.ALREADY_EXISTS: errors.InternalError,
    grpc.StatusCode.PERMISSION_DENIED: errors.Unauthenticated,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.InvalidFrame,
    grpc.StatusCode.FAILED_PRECONDITION: errors.InternalError,
    grpc.StatusCode.ABORTED: errors.InternalError,
    grpc.StatusCode.OUT_OF_RANGE: errors.InternalError,
    grpc.StatusCode.UNIMPLEMENTED: errors.ProtocolMismatch,
    grpc.StatusCode.INTERNAL: errors.InternalError,
    grpc.StatusCode.UNAVAILABLE: errors.Unreachable,
    grpc.StatusCode.DATA_LOSS: errors.InternalError,
    grpc.StatusCode.UNAUTHENTICATED: errors.Unauthenticated,
}

_REMEDY: dict[type[MeshError], str] = {
    errors.Unreachable: "is it running, and do both ends agree on TLS?",
    errors.DeadlineExceeded: "it may be overloaded; raise the timeout",
    errors.InvalidFrame: "split the request or raise max_frame_bytes on both ends",
    errors.ProtocolMismatch: "both ends must run the same version of gradmesh",
    errors.InternalError: "the worker's log says more",
}


def to_status(error: MeshError) -> grpc.Status:
    """Return the gRPC status of an error, with its reason and metadata."""
    status: grpc.Status = rpc_status.to_status(to_proto(error))
    return status


def to_proto(error: MeshError) -> Any:
    """Return the google.rpc.Status of an error, with its reason and metadata."""
    proto = status_pb2.Status(
        code=grpc.StatusCode[error.code].value[0],
        message=_shorten(error.message, _MAX_MESSAGE_BYTES),
    )
    metadata = {key: _shorten(text, _MAX_METADATA_BYTES) for key, text in error.metadata.items()}
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=metadata)
    proto.details.add().Pack(info)
    return proto


def from_bytes(data: bytes, where: str) -> MeshError:
    """Return the typed error in the bytes of a google.rpc.Status, as lanes send it."""
    try:
        proto = status_pb2.Status.FromString(data)
    except DecodeError:
        return errors.InternalError(f"{where}: an error that cannot be read", where=where)
    return _typed(proto, where) or errors.InternalError(f"{where}: {proto.message}", where=where)


def _typed(proto: Any, where: str) -> MeshError | None:
    """Return the error of the catalogue that a status carries, or None."""
    for detail in proto.details if proto is not None else ():
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info) and info.domain == DOMAIN:
            text = f"{proto.message} [{where}]"
            return errors.from_reason(info.reason, text, dict(info.metadata))
    return None


def from_call(call: grpc.RpcError, where: str) -> MeshError:
    """Return the typed error of a failed call.

    Args:
        call: The error that gRPC raised, which is also the call.
        where: The worker and the rpc, for the message.
    """
    typed = _typed(_details_of(call), where)
    if typed is not None:
        return typed
    cls = _BARE[call.code()]
    remedy = _REMEDY.get(cls, "")
    return cls(f"{where}: {call.details()}" + (f"; {remedy}" if remedy else ""), where=where)


def _details_of(call: Any) -> Any:
    """Return the google.rpc.Status of a failed call; None if it has none, or a wrong one.

    Unlike `rpc_status.from_call` it does not compare the message with gRPC's, which is sometimes
    still percent-encoded.
    """
    for key, value in call.trailing_metadata() or ():
        if key == _DETAILS_KEY:
            try:
                found = status_pb2.Status.FromString(value)
            except DecodeError:
                return None
            return found if found.code == call.code().value[0] else None
    return None


def _shorten(text: str, max_bytes: int) -> str:
    """Return the text as valid Unicode, without its middle if it is too long."""
    text = text.encode(errors="replace").decode()
    if _cost(text) <= max_bytes:
        return text
    text = text[:max_bytes] + text[-max_bytes:]
    keep = len(text) // 2
    while _cost(text[:keep]) + _cost(text[-keep:]) > max_bytes - 10:
        keep = keep * 9 // 10
    return f"{text[:keep]} … {text[-keep:]}"


def _cost(text: str) -> int:
    """Return the size of a text in a header, where all but plain ASCII is escaped."""
    return sum(1 if 0x20 <= byte < 0x7F else 3 for byte in text.encode())


_log = logging.getLogger(__name__)

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class CallInterceptor(grpc.ServerInterceptor):  # type: ignore[misc,unused-ignore]
    """Wraps every handler of a server: authorisation, metrics, and errors as statuses.

    All rpcs are unary but two: Exchange, whose calls pass through `Session`, and the health
    service's Watch, which is open to everyone.

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
            failure: MeshError | None = None
            response: Any = b""
            try:
                set_caller(self._check.admit(path, metadata, context.auth_context))
                with self._under_way(path):
                    response = inner(request, context)
            except MeshError as error:
                failure = error
            # A handler that calls sys.exit must not leave its client waiting until the deadline.
            except BaseException:
                failure = internal_error(path)
            self._observe(path, failure, time.perf_counter() - begun, request, response)
            if failure is not None:
                context.abort_with_status(to_status(failure))
            return response

        return grpc.unary_unary_rpc_method_handler(
            guarded, handler.request_deserializer, handler.response_serializer
        )

    def _guard_stream(self, handler: "Handler", path: str, metadata: dict[str, str]) -> "Handler":
        """Wrap a stream of calls; `Session` handles the errors of each call."""
        inner: Any = handler.stream_stream

        def guarded(requests: Any, context: grpc.ServicerContext) -> Any:
            try:
                set_caller(self._check.admit(path, metadata, context.auth_context))
                return inner(requests, context)
            except MeshError as error:
                failure = error
            except BaseException:
                failure = internal_error(path)
            self._metrics.observe(path, failure.reason, 0.0, 0, 0)
            context.abort_with_status(to_status(failure))

        behaviour: Any = guarded
        behaviour.experimental_thread_pool = getattr(inner, "experimental_thread_pool", None)
        return grpc.stream_stream_rpc_method_handler(behaviour)

    @contextmanager
    def _under_way(self, path: str) -> Iterator[None]:
        with self._idle:
            # While a process drains, probes expect "not serving", not an error.
            if self._closed and not is_open(path):
                raise Draining("this process is draining and accepts no new calls; try again later")
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


def internal_error(path: str) -> InternalError:
    """Log the exception being handled; return an error that reveals nothing about it."""
    request_id = uuid.uuid4().hex[:12]
    _log.exception("internal error in %s, request %s", path, request_id)
    return InternalError(f"internal error, request {request_id}", request_id=request_id)

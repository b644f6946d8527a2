"""The boundary of a process: errors of the catalogue inside, statuses of gRPC and lanes outside.

Handlers raise errors of the catalogue. `CallInterceptor` turns them into statuses, and clients turn
statuses back. Anything else that a handler raises is logged with a request id and leaves as a bare
"internal error".
"""

import logging
import uuid
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from gradmesh.protos import errors
from gradmesh.protos.errors import InternalError, MeshError
from gradmesh.protos.printable import received_text

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
    return _typed(proto, where) or errors.InternalError(
        f"{where}: {received_text(proto.message)}", where=where
    )


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
    details = received_text(call.details() or "")
    return cls(f"{where}: {details}" + (f"; {remedy}" if remedy else ""), where=where)


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


def internal_error(path: str) -> InternalError:
    """Log the exception being handled; return an error that reveals nothing about it."""
    request_id = uuid.uuid4().hex[:12]
    _log.exception("internal error in %s, request %s", path, request_id)
    return InternalError(f"internal error, request {request_id}", request_id=request_id)

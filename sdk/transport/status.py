"""Errors of the catalogue as gRPC statuses, and back. The only file that knows both."""

import grpc
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from gradmesh.protos import errors
from gradmesh.protos.errors import GradmeshError

DOMAIN = "gradmesh"

# What a status without our details means: it comes from gRPC itself, not from a handler.
_BARE: dict[grpc.StatusCode, type[GradmeshError]] = {
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

_REMEDY: dict[type[GradmeshError], str] = {
    errors.Unreachable: "is it running, and do both ends agree on TLS?",
    errors.DeadlineExceeded: "it may be overloaded; raise the timeout",
    errors.InvalidFrame: "split the request or raise max_frame_bytes on both ends",
    errors.ProtocolMismatch: "both ends must run the same version of gradmesh",
    errors.InternalError: "the worker's log says more",
}


def to_status(error: GradmeshError) -> grpc.Status:
    """Return the status that carries an error with its reason and metadata."""
    proto = status_pb2.Status(
        code=grpc.StatusCode[error.code].value[0],
        message=error.message,
    )
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=error.metadata)
    proto.details.add().Pack(info)
    status: grpc.Status = rpc_status.to_status(proto)
    return status


def from_call(call: grpc.RpcError, where: str) -> GradmeshError:
    """Return the typed error of a failed call.

    Args:
        call: What gRPC raised; it is also the call.
        where: The worker and the rpc, for the message.
    """
    proto = rpc_status.from_call(call)
    for detail in proto.details if proto is not None else ():
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info) and info.domain == DOMAIN:
            text = f"{proto.message} [{where}]"
            return errors.from_reason(info.reason, text, dict(info.metadata))
    cls = _BARE[call.code()]
    remedy = _REMEDY.get(cls, "")
    return cls(f"{where}: {call.details()}" + (f"; {remedy}" if remedy else ""), where=where)

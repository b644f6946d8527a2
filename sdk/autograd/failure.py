"""What went wrong in a backward pass, on its way between workers."""

import traceback

from gradmesh.protos.autograd.v1 import autograd_pb2 as pb
from gradmesh.protos.errors import (
    BackwardFailed,
    MeshError,
    SendNotFound,
    Unreachable,
    WorkerLost,
    WorkerNotFound,
    from_reason,
)

# A message that crosses the wire loses its middle beyond 2000 bytes; the end of a traceback is
# what its reader needs.
_TRACE_CHARACTERS = 1200


def to_failure(worker: str, error: BaseException) -> pb.Failure:
    """Return what the others get to know of an error.

    Args:
        worker: Where it was raised.
        error: What was raised.
    """
    if isinstance(error, MeshError):
        named = {"worker": worker} | error.metadata
        return pb.Failure(
            worker=named["worker"], reason=error.reason, message=error.message, metadata=named
        )
    trace = "".join(traceback.format_exception(error, limit=-8))[-_TRACE_CHARACTERS:]
    return pb.Failure(
        worker=worker,
        reason=BackwardFailed.reason,
        message=f"{type(error).__name__}: {error}\n{trace}",
        metadata={"worker": worker, "type": type(error).__name__},
    )


def from_failure(failure: pb.Failure, what: str) -> MeshError:
    """Return the error that a failure stands for.

    Args:
        failure: What arrived.
        what: Which pass, for the message.
    """
    message = failure.message
    if failure.reason == BackwardFailed.reason:
        message = f"{what} failed on {failure.worker}: {message}"
    return from_reason(failure.reason, message, dict(failure.metadata))


def lost(worker: str, error: MeshError) -> MeshError:
    """Return what it means for a pass that a worker could not be told something."""
    if isinstance(error, Unreachable | WorkerNotFound | SendNotFound):
        found = WorkerLost(
            f"{worker} is gone, or has restarted: {error.message}; go on in a new context",
            worker=worker,
        )
        found.__cause__ = error
        return found
    return error

"""Wire format of the gradients and failures of a backward pass."""

import traceback
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from gradmesh.engine.autograd import RowGrad
from gradmesh.engine.backend import to_numpy
from gradmesh.protos.autograd.v1 import autograd_pb2 as pb
from gradmesh.protos.errors import (
    BackwardFailed,
    InvalidFrame,
    MeshError,
    SendNotFound,
    Unreachable,
    WorkerLost,
    WorkerNotFound,
    from_reason,
)
from gradmesh.protos.frame import Array
from gradmesh.protos.limits import MAX_ERROR_BYTES, shortened

# A text on the wire loses its middle beyond 2000 bytes; the end of a traceback is what its reader
# needs.
_TRACE_CHARACTERS = 1200


_DENSE = pb.Gradient(kind=pb.GRADIENT_KIND_DENSE)
_NONE = pb.Gradient()


def pack_gradients(grads: Sequence[Any]) -> tuple[list[pb.Gradient], list[Array]]:
    """Return the descriptions of gradients and their arrays; None takes no array."""
    described: list[pb.Gradient] = []
    arrays: list[Array] = []
    for grad in grads:
        if grad is None:
            described.append(_NONE)
        elif type(grad) is RowGrad:
            arrays += (to_numpy(grad.ids), to_numpy(grad.rows))
            described.append(
                pb.Gradient(
                    kind=pb.GRADIENT_KIND_ROWS, num_rows=grad.num_rows, coalesced=grad.coalesced
                )
            )
        else:
            arrays.append(to_numpy(grad))
            described.append(_DENSE)
    return described, arrays


def own_arrays(arrays: Sequence[Array], borrowed: bool) -> Iterator[Array]:
    """Yield received arrays in memory that the receiver owns.

    Args:
        arrays: What arrived.
        borrowed: Whether they are invalid after the handler returns.
    """
    for array in arrays:
        yield array.copy() if borrowed or not array.flags.writeable else array


def unpack_gradients(described: Iterable[pb.Gradient], arrays: Iterator[Array]) -> list[Any]:
    """Return gradients that arrived, taking as many arrays as they need.

    Raises:
        InvalidFrame: Descriptions and arrays do not fit together.
    """
    try:
        return [_unpack(gradient, arrays) for gradient in described]
    except StopIteration:
        raise InvalidFrame("too few arrays for their gradients") from None


def _unpack(gradient: pb.Gradient, arrays: Iterator[Array]) -> Any:
    if gradient.kind == pb.GRADIENT_KIND_DENSE:
        return next(arrays)
    if gradient.kind != pb.GRADIENT_KIND_ROWS:
        return None
    ids, rows = next(arrays), next(arrays)
    fits = ids.ndim == 1 and ids.dtype == "int64" and rows.ndim and len(ids) == len(rows)
    if not fits or (len(ids) and not 0 <= ids.min() <= ids.max() < gradient.num_rows):
        raise InvalidFrame(
            f"gradients of rows with numbers {ids.dtype} {ids.shape}, rows {rows.shape} and "
            f"{gradient.num_rows} rows in all do not fit together"
        )
    return RowGrad(ids, rows, gradient.num_rows, gradient.coalesced)


def to_failure(worker: str, error: BaseException) -> pb.Failure:
    """Return an error as a wire message.

    Args:
        worker: Where it was raised.
        error: What was raised.
    """
    if isinstance(error, MeshError):
        named = {"worker": worker} | error.metadata
        return pb.Failure(
            worker=named["worker"],
            reason=error.reason,
            message=shortened(error.message, MAX_ERROR_BYTES),
            metadata={key: shortened(value, MAX_ERROR_BYTES) for key, value in named.items()},
        )
    trace = "".join(traceback.format_exception(error, limit=-8))[-_TRACE_CHARACTERS:]
    text = f"{type(error).__name__}: {error}\n{trace}"
    return pb.Failure(
        worker=worker,
        reason=BackwardFailed.reason,
        message=shortened(text, MAX_ERROR_BYTES),
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
    """Return the error of a pass whose message did not reach a worker."""
    if isinstance(error, Unreachable | WorkerNotFound | SendNotFound):
        found = WorkerLost(
            f"{worker} is gone, or has restarted: {error.message}; continue in a new context",
            worker=worker,
        )
        found.__cause__ = error
        return found
    return error

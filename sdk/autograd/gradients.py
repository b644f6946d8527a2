"""Gradients of a message's tensors as the wire carries them."""

from collections.abc import Sequence
from typing import Any

from gradmesh.engine.autograd import RowGrad
from gradmesh.engine.backend import to_numpy
from gradmesh.protos.autograd.v1 import autograd_pb2 as pb
from gradmesh.protos.errors import InvalidFrame
from gradmesh.protos.frame import Array

_DENSE = pb.Gradient(kind=pb.GRADIENT_KIND_DENSE)
_NONE = pb.Gradient()


def pack_gradients(grads: Sequence[Any]) -> tuple[list[pb.Gradient], list[Array]]:
    """Return the descriptions of gradients and their arrays; None stays nothing."""
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


def unpack_gradients(
    described: Sequence[pb.Gradient], arrays: Sequence[Array], borrowed: bool
) -> list[Any]:
    """Return gradients that arrived; their memory is the receiver's own.

    Args:
        described: What they are.
        arrays: Their arrays.
        borrowed: Whether the arrays are gone when the handler returns.

    Raises:
        InvalidFrame: Descriptions and arrays do not fit together.
    """
    own = iter([a.copy() if borrowed or not a.flags.writeable else a for a in arrays])
    try:
        grads = [_unpack(gradient, own) for gradient in described]
    except StopIteration:
        raise InvalidFrame(f"{len(arrays)} arrays are too few for their gradients") from None
    if next(own, None) is not None:
        raise InvalidFrame(f"{len(arrays)} arrays are too many for their gradients")
    return grads


def _unpack(gradient: pb.Gradient, arrays: Any) -> Any:
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

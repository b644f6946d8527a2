"""What all losses share: how they are reduced, and how input and target are brought together."""

from __future__ import annotations

import warnings
from typing import Any

from gradmesh.engine.autograd.ops.broadcast import broadcast_shape
from gradmesh.engine.autograd.ops.shape import broadcast_to
from gradmesh.engine.backend import Array, DtypeError
from gradmesh.engine.backend.dtype import FLOATS, float32, promote

_REDUCTIONS = ("mean", "sum", "none")


def check_reduction(reduction: str) -> None:
    """Raise ValueError unless the reduction is one of torch's."""
    if reduction not in _REDUCTIONS:
        raise ValueError(f"reduction is {reduction!r}; use one of {_REDUCTIONS}")


def reduce_losses(losses: Array, reduction: str, count: Any) -> Array:
    """Reduce losses; count is what a mean divides by, an empty mean is NaN as in torch."""
    if reduction == "none":
        return losses
    if losses.dtype.itemsize < 4:
        # Half precision holds neither long sums nor large counts.
        return reduce_losses(losses.astype(float32), reduction, count).astype(losses.dtype)
    total = losses.sum()
    if reduction == "sum":
        return total
    return total / count if count else total + float("nan")


def scaled(grad: Array, reduction: str, count: Any) -> Array:
    """Return the gradient of each loss from that of the reduced one."""
    if reduction != "mean" or not count:
        return grad
    dtype = grad.dtype
    # float() because the count may live on a device.
    if dtype.itemsize < 4:
        return (grad.astype(float32) / float(count)).astype(dtype)
    return grad / dtype.type(float(count))


def matched(name: str, x: Any, target: Any) -> tuple[Any, Any]:
    """Return input and target in one shape and one float dtype.

    Shapes that differ broadcast, with torch's warning: [n, 1] against [n] is an [n, n] of losses,
    which is hardly ever meant.

    Raises:
        ShapeError: If the shapes do not broadcast.
        DtypeError: If neither is of floats.
    """
    # Before they broadcast, so that gradients of half precision are rounded once.
    x, target, shapes = *in_one_dtype(name, x, target), (x.shape, target.shape)
    if shapes[0] == shapes[1]:
        return x, target
    shape = broadcast_shape(name, *shapes)
    warnings.warn(
        f"{name}: input {shapes[0]} and target {shapes[1]} differ and broadcast to {shape}; "
        "give both one shape, with reshape() or expand(), if that is not meant",
        stacklevel=3,
    )
    return broadcast_to(x, shape), broadcast_to(target, shape)


def in_one_dtype(name: str, x: Any, target: Any) -> tuple[Any, Any]:
    """Return input and target in their common dtype.

    Raises:
        DtypeError: If neither is of floats.
    """
    dtype = x.dtype
    if dtype != target.dtype:
        broadcast_shape(name, x.shape, target.shape)
        # As if they had been broadcast: one without axes counts as much as the other.
        dtype = promote(dtype, target.dtype)
    if dtype not in FLOATS:
        raise DtypeError(f"{name}: takes floats, not {dtype}; cast with .float() first")
    return x.to(dtype), target.to(dtype)

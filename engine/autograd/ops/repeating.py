"""Turning axes around and repeating tensors along them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradmesh.engine.autograd.function import Function
from gradmesh.engine.autograd.ops.axis import as_int, axis_of
from gradmesh.engine.autograd.ops.floats import total
from gradmesh.engine.backend import Array, ShapeError, array_module


class _Flip(Function):
    __slots__ = ("axes",)

    @staticmethod
    def forward(ctx: Any, x: Array, axes: tuple[int, ...]) -> Array:
        ctx.axes = axes
        return array_module(x).flip(x, axes).copy()

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        return array_module(grad).flip(grad, ctx.axes), None


class _Repeat(Function):
    __slots__ = ("counts", "shape")

    @staticmethod
    def forward(ctx: Any, x: Array, counts: tuple[int, ...]) -> Array:
        ctx.counts, ctx.shape = counts, x.shape
        return array_module(x).tile(x, counts)

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        lengths = (1,) * (len(ctx.counts) - len(ctx.shape)) + ctx.shape
        # Each axis becomes two, its repetitions and its length; the repetitions add up.
        pairs = [n for pair in zip(ctx.counts, lengths, strict=True) for n in pair]
        sums = total(grad.reshape(pairs), tuple(range(0, len(pairs), 2)))
        return sums.reshape(ctx.shape), None


def flip(x: Any, dims: int | Sequence[int]) -> Any:
    """Return a copy with the elements along some axes in reverse order."""
    given = (dims,) if isinstance(dims, int) else dims
    axes = tuple(axis_of("flip", dim, x.ndim) for dim in given)
    if len(set(axes)) != len(axes):
        raise ShapeError(f"flip: an axis appears twice in {tuple(given)}")
    return _Flip.apply(x, axes if x.ndim else ())


def repeat(x: Any, counts: Sequence[int]) -> Any:
    """Return x repeated along each axis; counts beyond its axes make new ones in front.

    Raises:
        ShapeError: If there are fewer counts than axes, or a count is negative.
    """
    if len(counts) < x.ndim:
        raise ShapeError(f"repeat: {len(counts)} counts for a tensor of shape {tuple(x.shape)}")
    return _repeated("repeat", x, counts)


def tile(x: Any, dims: Sequence[int]) -> Any:
    """Return x repeated along its last axes, or along new ones in front if more counts are given.

    Raises:
        ShapeError: If a count is negative.
    """
    return _repeated("tile", x, (*[1] * (x.ndim - len(dims)), *dims))


def _repeated(name: str, x: Any, counts: Sequence[int]) -> Any:
    numbers = tuple(as_int(name, "a count", count) for count in counts)
    if any(number < 0 for number in numbers):
        raise ShapeError(f"{name}: counts {numbers} are negative in part")
    return _Repeat.apply(x, numbers)

"""Ops that rearrange elements without changing them: reshape, permute, broadcast, repeat, flip."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gradmesh.engine.autograd.function import Function
from gradmesh.engine.autograd.ops.arguments import as_int, axes_of, axis_of
from gradmesh.engine.autograd.ops.broadcast import unbroadcast
from gradmesh.engine.autograd.ops.floats import total
from gradmesh.engine.backend import Array, ShapeError, array_module


class _Reshape(Function):
    __slots__ = ("shape",)
    is_view = True

    @staticmethod
    def forward(ctx: Any, x: Array, shape: tuple[int, ...]) -> Array:
        ctx.shape = x.shape
        try:
            return x.reshape(shape)
        except ValueError as error:
            raise ShapeError(f"reshape: {tuple(x.shape)} does not fit {shape}") from error

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        return grad.reshape(ctx.shape), None


class _Permute(Function):
    __slots__ = ("axes",)
    is_view = True

    @staticmethod
    def forward(ctx: Any, x: Array, axes: tuple[int, ...]) -> Array:
        ctx.axes = axes_of("permute", axes, x.ndim)
        if len(axes) != x.ndim:
            raise ShapeError(f"permute: {axes} is not an order of the {x.ndim} axes")
        return x.transpose(ctx.axes)

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        back = sorted(range(len(ctx.axes)), key=ctx.axes.__getitem__)
        return grad.transpose(back), None


class _Broadcast(Function):
    __slots__ = ("like",)

    @staticmethod
    def forward(ctx: Any, x: Array, shape: tuple[int, ...]) -> Array:
        ctx.like = (x.shape, x.dtype)
        try:
            return array_module(x).broadcast_to(x, shape).copy()
        except ValueError as error:
            raise ShapeError(f"broadcast_to: {tuple(x.shape)} does not fit {shape}") from error

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        return unbroadcast(grad, ctx.like), None


class _Copy(Function):
    """Copy, change dtype or move to a device; the gradient goes the way back."""

    __slots__ = ("device", "dtype")

    @staticmethod
    def forward(ctx: Any, x: Array, dtype: Any, device: Any) -> Array:
        from gradmesh.engine.backend import device_of, to_device

        ctx.dtype, ctx.device = x.dtype, device_of(x)
        out = x if device is None else to_device(x, device)
        if dtype is not None and dtype != out.dtype:
            return out.astype(dtype)
        return out.copy() if out is x else out

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        from gradmesh.engine.backend import to_device

        return to_device(grad, ctx.device).astype(ctx.dtype, copy=False), None, None


def reshape(x: Any, shape: tuple[int, ...]) -> Any:
    """Return x in another shape; one axis may be -1."""
    wanted = tuple([int(n) for n in shape])
    if wanted and min(wanted) < -1:
        raise ShapeError(f"reshape: a length in {wanted} is negative")
    return _Reshape.apply(x, wanted)


def flatten(x: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    """Return x with the axes from one to another merged into one."""
    start, end = axis_of("flatten", start_dim, x.ndim), axis_of("flatten", end_dim, x.ndim)
    if start > end:
        raise ShapeError(f"flatten: axis {start_dim} comes after axis {end_dim}")
    if start == end and x.ndim:
        return x
    # Counted, because numpy cannot infer a length beside an empty axis.
    length = math.prod(x.shape[start : end + 1])
    return reshape(x, (*x.shape[:start], length, *x.shape[end + 1 :]))


def permute(x: Any, axes: tuple[int, ...]) -> Any:
    """Return x with its axes in another order."""
    return _Permute.apply(x, tuple(axes))


def transpose(x: Any, dim0: int, dim1: int) -> Any:
    """Return x with two axes swapped."""
    first, second = axis_of("transpose", dim0, x.ndim), axis_of("transpose", dim1, x.ndim)
    axes = list(range(x.ndim))
    if axes:
        axes[first], axes[second] = axes[second], axes[first]
    return permute(x, tuple(axes))


def squeeze(x: Any, dim: Any = None) -> Any:
    """Return x without its axes of length 1, or without those of them that are given."""
    gone = axes_of("squeeze", dim, x.ndim) if dim != () else ()
    return reshape(x, tuple(n for i, n in enumerate(x.shape) if n != 1 or i not in gone))


def unsqueeze(x: Any, dim: int) -> Any:
    """Return x with a new axis of length 1 at a position."""
    shape = list(x.shape)
    shape.insert(axis_of("unsqueeze", dim, x.ndim + 1), 1)
    return reshape(x, tuple(shape))


def broadcast_to(x: Any, shape: tuple[int, ...]) -> Any:
    """Return x repeated to a shape it broadcasts to; -1 keeps the length of an axis."""
    new = len(shape) - x.ndim
    wanted = tuple(
        x.shape[i - new] if n == -1 and i >= new >= 0 else n for i, n in enumerate(shape)
    )
    if wanted and min(wanted) < 0:
        raise ShapeError(f"broadcast_to: {tuple(x.shape)} does not fit {tuple(shape)}")
    return _Broadcast.apply(x, wanted)


def copy(x: Any, dtype: Any = None, device: Any = None) -> Any:
    """Return a copy, in another dtype or on another device if given."""
    if dtype is not None and dtype.kind in "iub" and getattr(x, "_requires_grad", False):
        # Integers and bools have no gradient.
        x = x.detach()
    return _Copy.apply(x, dtype, device)


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
    """Return x repeated along its last axes; more counts than axes add axes in front.

    Raises:
        ShapeError: If a count is negative.
    """
    return _repeated("tile", x, (*[1] * (x.ndim - len(dims)), *dims))


def _repeated(name: str, x: Any, counts: Sequence[int]) -> Any:
    numbers = tuple(as_int(name, "a count", count) for count in counts)
    if any(number < 0 for number in numbers):
        raise ShapeError(f"{name}: counts {numbers} include a negative one")
    return _Repeat.apply(x, numbers)

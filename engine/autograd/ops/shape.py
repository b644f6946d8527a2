"""Ops that change the shape and not the values; all return views where numpy does."""

from __future__ import annotations

from typing import Any

from gradmesh.engine.autograd.function import Function
from gradmesh.engine.autograd.ops.broadcast import unbroadcast
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
        if sorted(a % x.ndim for a in axes) != list(range(x.ndim)):
            raise ShapeError(f"permute: {axes} is no order of the {x.ndim} axes")
        ctx.axes = tuple(a % x.ndim for a in axes)
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
    return _Reshape.apply(x, tuple(int(n) for n in shape))


def permute(x: Any, axes: tuple[int, ...]) -> Any:
    """Return x with its axes in another order."""
    return _Permute.apply(x, tuple(axes))


def transpose(x: Any, dim0: int, dim1: int) -> Any:
    """Return x with two axes swapped."""
    axes = list(range(x.ndim))
    axes[dim0], axes[dim1] = axes[dim1], axes[dim0]
    return permute(x, tuple(axes))


def squeeze(x: Any, dim: int | None = None) -> Any:
    """Return x without its axes of length 1, or without one of them."""
    if dim is None:
        return reshape(x, tuple(n for n in x.shape if n != 1))
    shape = list(x.shape)
    if shape[dim] == 1:
        del shape[dim % x.ndim]
    return reshape(x, tuple(shape))


def unsqueeze(x: Any, dim: int) -> Any:
    """Return x with a new axis of length 1 at a position."""
    shape = list(x.shape)
    shape.insert(dim if dim >= 0 else dim + x.ndim + 1, 1)
    return reshape(x, tuple(shape))


def broadcast_to(x: Any, shape: tuple[int, ...]) -> Any:
    """Return x repeated to a shape it broadcasts to."""
    return _Broadcast.apply(x, tuple(shape))


def copy(x: Any, dtype: Any = None, device: Any = None) -> Any:
    """Return a copy, in another dtype or on another device if given."""
    return _Copy.apply(x, dtype, device)

"""Reductions along axes."""

from __future__ import annotations

import math
from typing import Any

from gradmesh.engine.autograd.function import Function
from gradmesh.engine.backend import Array, DtypeError, array_module
from gradmesh.engine.backend.dtype import FLOATS, int64


def _axes(dim: Any, ndim: int) -> tuple[int, ...]:
    if dim is None:
        return tuple(range(ndim))
    return tuple(d % ndim for d in ((dim,) if isinstance(dim, int) else dim))


def _spread(grad: Array, shape: tuple[int, ...], axes: tuple[int, ...]) -> Array:
    """Return a view of a reduced gradient in the shape before the reduction."""
    kept = tuple(1 if i in axes else n for i, n in enumerate(shape))
    return array_module(grad).broadcast_to(grad.reshape(kept), shape)


class _Sum(Function):
    __slots__ = ("axes", "shape")

    @staticmethod
    def forward(ctx: Any, x: Array, dim: Any, keepdim: bool) -> Array:
        ctx.shape, ctx.axes = x.shape, _axes(dim, x.ndim)
        dtype = None if x.dtype in FLOATS else int64
        return x.sum(axis=ctx.axes, keepdims=keepdim, dtype=dtype)

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        return _spread(grad, ctx.shape, ctx.axes), None, None


class _Mean(Function):
    __slots__ = ("axes", "count", "shape")

    @staticmethod
    def forward(ctx: Any, x: Array, dim: Any, keepdim: bool) -> Array:
        if x.dtype not in FLOATS:
            raise DtypeError(f"mean needs a float tensor, not {x.dtype}")
        ctx.shape, ctx.axes = x.shape, _axes(dim, x.ndim)
        ctx.count = math.prod(x.shape[a] for a in ctx.axes)
        total = x.sum(axis=ctx.axes, keepdims=keepdim)
        return total / array_module(x).asarray(ctx.count, dtype=x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        return _spread(grad / grad.dtype.type(ctx.count), ctx.shape, ctx.axes), None, None


class _Extremum(Function):
    """Take an extreme element; of equals all share the gradient, along an axis the first has it."""

    __slots__ = ("dim", "keepdim", "shape")

    @staticmethod
    def forward(ctx: Any, x: Array, dim: int | None, keepdim: bool, largest: bool) -> Any:
        ctx.shape, ctx.dim, ctx.keepdim = x.shape, dim, keepdim
        if dim is None:
            out = x.max() if largest else x.min()
            ctx.save_for_backward(x == out)
            return out
        xp = array_module(x)
        places = xp.expand_dims(x.argmax(axis=dim) if largest else x.argmin(axis=dim), dim)
        ctx.save_for_backward(places)
        out = xp.take_along_axis(x, places, axis=dim)
        return out if keepdim else out.squeeze(axis=dim)

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        (where,) = ctx.saved_tensors
        xp = array_module(grad)
        if ctx.dim is None:
            return where * (grad / where.sum(dtype=grad.dtype)), None, None, None
        out = xp.zeros(ctx.shape, dtype=grad.dtype)
        kept = grad if ctx.keepdim else xp.expand_dims(grad, ctx.dim)
        xp.put_along_axis(out, where, kept, axis=ctx.dim)
        return out, None, None, None


class _Var(Function):
    __slots__ = ("axes", "count")

    @staticmethod
    def forward(ctx: Any, x: Array, dim: Any, correction: int, keepdim: bool) -> Array:
        ctx.axes = _axes(dim, x.ndim)
        ctx.count = math.prod(x.shape[a] for a in ctx.axes) - correction
        centred = x - x.mean(axis=ctx.axes, keepdims=True)
        ctx.save_for_backward(centred)
        return (centred * centred).sum(axis=ctx.axes, keepdims=keepdim) / x.dtype.type(ctx.count)

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        (centred,) = ctx.saved_tensors
        slope = _spread(grad, centred.shape, ctx.axes) * grad.dtype.type(2 / ctx.count)
        return centred * slope, None, None, None


class _CumSum(Function):
    __slots__ = ("dim",)

    @staticmethod
    def forward(ctx: Any, x: Array, dim: int) -> Array:
        ctx.dim = dim
        dtype = None if x.dtype in FLOATS else int64
        return array_module(x).cumsum(x, axis=dim, dtype=dtype)

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        xp = array_module(grad)
        return xp.flip(xp.cumsum(xp.flip(grad, ctx.dim), axis=ctx.dim), ctx.dim), None


def sum(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Return the sum over all elements or over some axes."""
    return _Sum.apply(x, dim, keepdim)


def mean(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Return the mean over all elements or over some axes."""
    return _Mean.apply(x, dim, keepdim)


def var(x: Any, dim: Any = None, correction: int = 1, keepdim: bool = False) -> Any:
    """Return the variance; correction 1 divides by n - 1."""
    return _Var.apply(x, dim, correction, keepdim)


def max(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return the largest element, of all or along an axis."""
    return _Extremum.apply(x, dim, keepdim, True)


def min(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return the smallest element, of all or along an axis."""
    return _Extremum.apply(x, dim, keepdim, False)


def cumsum(x: Any, dim: int) -> Any:
    """Return the running sums along an axis."""
    return _CumSum.apply(x, dim)

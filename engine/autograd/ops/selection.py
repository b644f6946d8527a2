"""Picking elements by index along an axis, and hiding elements by a mask."""

from __future__ import annotations

from typing import Any

from gradmesh.engine.autograd.function import Function
from gradmesh.engine.autograd.ops.rows import scatter_add
from gradmesh.engine.backend import Array, DtypeError, array_module


class _Gather(Function):
    __slots__ = ("dim", "shape")

    @staticmethod
    def forward(ctx: Any, x: Array, dim: int, index: Array) -> Array:
        if index.dtype.kind not in "iu":
            raise DtypeError(f"gather: an index is of integers, not {index.dtype}")
        ctx.shape, ctx.dim = x.shape, dim % x.ndim
        # torch takes an index shorter than x along the other axes; the rest of x is not looked at.
        cut = tuple(
            slice(None) if axis == ctx.dim else slice(0, n) for axis, n in enumerate(index.shape)
        )
        ctx.save_for_backward(index)
        return array_module(x).take_along_axis(x[cut], index, axis=ctx.dim)

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        (index,) = ctx.saved_tensors
        xp = array_module(grad)
        out = xp.zeros(ctx.shape, dtype=grad.dtype)
        places = xp.arange(out.size).reshape(ctx.shape)
        cut = tuple(
            slice(None) if axis == ctx.dim else slice(0, n) for axis, n in enumerate(index.shape)
        )
        flat = xp.take_along_axis(places[cut], index, axis=ctx.dim).reshape(-1)
        scatter_add(out.reshape(-1, 1), flat, grad.reshape(-1, 1))
        return out, None, None


class _MaskedFill(Function):
    __slots__ = ()

    @staticmethod
    def forward(ctx: Any, x: Array, mask: Array, value: float) -> Array:
        ctx.save_for_backward(mask)
        return array_module(x).where(mask, x.dtype.type(value), x)

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        (mask,) = ctx.saved_tensors
        return array_module(grad).where(mask, grad.dtype.type(0), grad), None, None


class _LeakyRelu(Function):
    __slots__ = ("slope",)

    @staticmethod
    def forward(ctx: Any, x: Array, slope: float) -> Array:
        ctx.slope = slope
        ctx.save_for_backward(x)
        return array_module(x).where(x > 0, x, x * x.dtype.type(slope))

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        (x,) = ctx.saved_tensors
        return array_module(x).where(x > 0, grad, grad * grad.dtype.type(ctx.slope)), None


def gather(x: Any, dim: int, index: Any) -> Any:
    """Return, for each place of the index, the element of x at that place along an axis."""
    return _Gather.apply(x, dim, index)


def masked_fill(x: Any, mask: Any, value: float) -> Any:
    """Return x with a value where the mask is true; no gradient goes there."""
    return _MaskedFill.apply(x, mask, value)


def leaky_relu(x: Any, negative_slope: float = 0.01) -> Any:
    """Return x where it is positive, else x times a slope."""
    return _LeakyRelu.apply(x, negative_slope)


def chunk(x: Any, chunks: int, dim: int = 0) -> Any:
    """Return at most so many pieces of x along an axis, all but the last of one length."""
    return x.split(-(-x.shape[dim] // chunks), dim)


def unbind(x: Any, dim: int = 0) -> tuple[Any, ...]:
    """Return the slices of x along an axis, without that axis."""
    return tuple(part.squeeze(dim) for part in x.split(1, dim))


def norm(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Return the root of the sum of squares, over all elements or over some axes."""
    return (x * x).sum(dim=dim, keepdim=keepdim).sqrt()


def std(x: Any, dim: Any = None, correction: int = 1, keepdim: bool = False) -> Any:
    """Return the standard deviation; correction 1 divides by n - 1."""
    return x.var(dim=dim, correction=correction, keepdim=keepdim).sqrt()

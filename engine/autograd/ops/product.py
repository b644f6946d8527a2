"""The product of elements."""

from __future__ import annotations

from typing import Any

from gradmesh.engine.autograd.function import Function
from gradmesh.engine.autograd.ops.axis import axis_of
from gradmesh.engine.backend import Array, array_module
from gradmesh.engine.backend.dtype import FLOATS, float32, int64


class _Prod(Function):
    __slots__ = ("axis",)

    @staticmethod
    def forward(ctx: Any, x: Array, axis: int | None, keepdim: bool) -> Array:
        ctx.axis = axis
        ctx.save_for_backward(x)
        wide = int64 if x.dtype not in FLOATS else _wide(x.dtype)
        out = array_module(x).prod(x, axis=axis, dtype=wide, keepdims=keepdim)
        return out if x.dtype not in FLOATS else out.astype(x.dtype, copy=False)

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        (x,) = ctx.saved_tensors
        xp = array_module(x)
        rows = x.reshape(-1) if ctx.axis is None else xp.moveaxis(x, ctx.axis, -1)
        others = _others(rows.astype(_wide(x.dtype), copy=False))
        out = others * grad.reshape(*rows.shape[:-1], 1)
        out = out.reshape(x.shape) if ctx.axis is None else xp.moveaxis(out, -1, ctx.axis)
        return out.astype(x.dtype, copy=False), None, None


def _wide(dtype: Any) -> Any:
    """Return the dtype to multiply in: halves lose too much, product by product."""
    return float32 if dtype.itemsize < 4 else dtype


def _others(x: Array) -> Array:
    """Return for each element the product of the others along the last axis.

    Not the whole product divided by the element: that has no value where the element is 0.
    """
    xp = array_module(x)
    out = xp.ones_like(x)
    out[..., 1:] = xp.cumprod(x[..., :-1], axis=-1)
    after = xp.cumprod(xp.flip(x[..., 1:], -1), axis=-1)
    out[..., :-1] *= xp.flip(after, -1)
    return out


def prod(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return the product of all elements or along an axis; of integers in int64, of none 1."""
    axis = None if dim is None else axis_of("prod", dim, x.ndim)
    return _Prod.apply(x, axis if x.ndim else None, keepdim)

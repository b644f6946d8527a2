"""The p-norm over axes, with torch's subgradients where it has no slope."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradmesh.engine.autograd.function import Function
from gradmesh.engine.autograd.ops.arguments import axes_of
from gradmesh.engine.autograd.ops.floats import check_float, wide
from gradmesh.engine.autograd.ops.reduction import spread
from gradmesh.engine.backend import Array, ShapeError, array_module


class _Norm(Function):
    __slots__ = ("axes", "p")

    @staticmethod
    def forward(ctx: Any, x: Array, p: float, dim: Any, keepdim: bool) -> Array:
        check_float("norm", x)
        ctx.p, ctx.axes = p, axes_of("norm", dim, x.ndim)
        if (p < 0 or math.isinf(p)) and not math.prod(x.shape[a] for a in ctx.axes):
            raise ShapeError(f"norm: no elements of {tuple(x.shape)} to take the {p}-norm of")
        out = _norm(wide(x), p, ctx.axes).astype(x.dtype, copy=False)
        if not keepdim:
            out = out.reshape([n for axis, n in enumerate(x.shape) if axis not in ctx.axes])
        # Save the returned array, so that a change of it in place is detected.
        ctx.save_for_backward(x, out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        x, out = ctx.saved_tensors
        given = spread(grad, x.shape, ctx.axes)
        with np.errstate(divide="ignore", invalid="ignore"):
            whole = wide(spread(out, x.shape, ctx.axes))
            found = given * _slope(wide(x), whole, ctx.p, ctx.axes)
        return found.astype(x.dtype, copy=False), None, None, None


def _norm(x: Array, p: float, axes: tuple[int, ...]) -> Array:
    xp = array_module(x)
    if p == 2:
        return xp.sqrt((x * x).sum(axis=axes, keepdims=True))
    if p == 0:
        return (x != 0).sum(axis=axes, keepdims=True, dtype=x.dtype)
    size = xp.abs(x)
    if p == 1:
        return size.sum(axis=axes, keepdims=True)
    if math.isinf(p):
        return size.max(axis=axes, keepdims=True) if p > 0 else size.min(axis=axes, keepdims=True)
    # A negative power of 0 is infinite, and the norm is 0 then.
    with np.errstate(divide="ignore"):
        return (size**p).sum(axis=axes, keepdims=True) ** (1 / p)


def _slope(x: Array, out: Array, p: float, axes: tuple[int, ...]) -> Array:
    """Return the norm's slope in each element; 0 where there is none."""
    xp = array_module(x)
    zero, one = x.dtype.type(0), x.dtype.type(1)
    if p == 0:
        return xp.zeros_like(x)
    if p == 1:
        return xp.sign(x)
    if math.isinf(p):
        # Equals share the gradient.
        extreme = xp.abs(x) == out
        count = extreme.sum(axis=axes, keepdims=True).astype(x.dtype)
        return xp.sign(x) * extreme / xp.where(count == 0, one, count)
    if p == 2:
        return xp.where(out == 0, zero, x / xp.where(out == 0, one, out))
    flat = (out == 0) | (x == 0)
    ratio = xp.abs(x) / xp.where(out == 0, one, out)
    return xp.where(flat, zero, xp.sign(x) * xp.where(flat, one, ratio) ** (p - 1))


def norm(x: Any, p: Any = "fro", dim: Any = None, keepdim: bool = False) -> Any:
    """Return the p-norm over all elements or over some axes.

    Args:
        x: A float tensor.
        p: The exponent, for instance 1, 2, `math.inf` or `-math.inf`; `"fro"` is 2.
        dim: Axis or axes; None for all.
        keepdim: Whether the axes stay, with length 1.
    """
    if isinstance(p, str) and p != "fro":
        raise ValueError(f"norm: p is {p!r}; use a number or 'fro'")
    return _Norm.apply(x, 2.0 if isinstance(p, str) or p is None else float(p), dim, keepdim)

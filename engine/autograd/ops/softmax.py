"""Softmax, its logarithm and the logarithm of its sum along an axis."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradmesh.engine.autograd.function import Function
from gradmesh.engine.autograd.ops.arguments import axes_of, axis_of
from gradmesh.engine.autograd.ops.floats import as_float, check_float, total, wide
from gradmesh.engine.autograd.ops.reduction import spread
from gradmesh.engine.backend import Array, array_module


class _Softmax(Function):
    __slots__ = ("dim",)

    @staticmethod
    def forward(ctx: Any, x: Array, dim: int) -> Array:
        check_float("softmax", x)
        ctx.dim = dim
        if not x.size:
            out = x.copy()
        else:
            given = wide(x)
            out = array_module(x).exp(given - given.max(axis=dim, keepdims=True))
            out /= total(out, dim, True)
            out = out.astype(x.dtype, copy=False)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        out = wide(ctx.saved_tensors[0])
        weighted = grad * out
        found = weighted - out * total(weighted, ctx.dim, True)
        return found.astype(grad.dtype, copy=False), None


class _LogSoftmax(Function):
    __slots__ = ("dim",)

    @staticmethod
    def forward(ctx: Any, x: Array, dim: int) -> Array:
        check_float("log_softmax", x)
        out = log_softmax_array(wide(x), dim).astype(x.dtype, copy=False)
        ctx.dim = dim
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        (out,) = ctx.saved_tensors
        given = wide(grad)
        found = given - array_module(out).exp(wide(out)) * total(given, ctx.dim, True)
        return found.astype(grad.dtype, copy=False), None


class _LogSumExp(Function):
    __slots__ = ("axes", "dtype", "shape")

    @staticmethod
    def forward(ctx: Any, x: Array, dim: Any, keepdim: bool) -> Array:
        xp = array_module(x)
        ctx.dtype = as_float(x).dtype
        given = wide(as_float(x))
        axes = axes_of("logsumexp", dim, x.ndim)
        ctx.axes, ctx.shape = axes, x.shape
        least = given.dtype.type(-math.inf)
        if math.prod(x.shape[a] for a in axes):
            top = given.max(axis=axes, keepdims=True)
        else:
            top = xp.full([1 if i in axes else n for i, n in enumerate(x.shape)], least)
        finite = xp.isfinite(top)
        if finite.all():
            out, shares = _log_sum(xp, given, top, axes)
        else:
            # Infinite elements make the sum infinite, 0 or NaN by themselves.
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                top = xp.where(finite, top, given.dtype.type(0))
                out, shares = _log_sum(xp, given, top, axes)
        ctx.save_for_backward(shares)
        out = out.astype(ctx.dtype, copy=False)
        if keepdim:
            return out
        return out.reshape([n for axis, n in enumerate(x.shape) if axis not in axes])

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        found = ctx.saved_tensors[0] * spread(grad, ctx.shape, ctx.axes)
        return found.astype(ctx.dtype, copy=False), None, None


def _log_sum(xp: Any, x: Array, top: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
    """Return the logarithm of the sum of exp(x), and each element's share in the sum."""
    shares = xp.exp(x - top)
    whole = total(shares, axes, True)
    return xp.log(whole) + top, shares / whole


def log_softmax_array(x: Array, dim: int) -> Array:
    """Return the logarithm of softmax, for arrays of float32 or float64."""
    if not x.size:
        return x.copy()
    xp = array_module(x)
    shifted = x - x.max(axis=dim, keepdims=True)
    shifted -= xp.log(total(xp.exp(shifted), dim, True))
    return shifted


def softmax(x: Any, dim: int = -1) -> Any:
    """Return exp(x), scaled to sum to 1 along an axis."""
    axis = axis_of("softmax", dim, x.ndim)
    return _Softmax.apply(x, axis) if x.ndim else softmax(x.reshape(1), 0).reshape(())


def log_softmax(x: Any, dim: int = -1) -> Any:
    """Return the logarithm of softmax along an axis."""
    axis = axis_of("log_softmax", dim, x.ndim)
    return _LogSoftmax.apply(x, axis) if x.ndim else log_softmax(x.reshape(1), 0).reshape(())


def logsumexp(x: Any, dim: Any, keepdim: bool = False) -> Any:
    """Return the logarithm of the sum of exp(x) along one or more axes, without overflow."""
    return _LogSumExp.apply(x, dim, keepdim)

"""Softmax, its logarithm and the logarithm of its sum along an axis."""

from __future__ import annotations

from typing import Any

from gradmesh.engine.autograd.function import Function
from gradmesh.engine.backend import Array, array_module


class _Softmax(Function):
    __slots__ = ("dim",)

    @staticmethod
    def forward(ctx: Any, x: Array, dim: int) -> Array:
        out = array_module(x).exp(x - x.max(axis=dim, keepdims=True))
        out /= out.sum(axis=dim, keepdims=True)
        ctx.dim = dim
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        (out,) = ctx.saved_tensors
        weighted = grad * out
        return weighted - out * weighted.sum(axis=ctx.dim, keepdims=True), None


class _LogSoftmax(Function):
    __slots__ = ("dim",)

    @staticmethod
    def forward(ctx: Any, x: Array, dim: int) -> Array:
        out = log_softmax_array(x, dim)
        ctx.dim = dim
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        (out,) = ctx.saved_tensors
        return grad - array_module(out).exp(out) * grad.sum(axis=ctx.dim, keepdims=True), None


class _LogSumExp(Function):
    __slots__ = ("dim", "keepdim")

    @staticmethod
    def forward(ctx: Any, x: Array, dim: int, keepdim: bool) -> Array:
        xp = array_module(x)
        top = x.max(axis=dim, keepdims=True)
        shares = xp.exp(x - top)
        total = shares.sum(axis=dim, keepdims=True)
        ctx.dim, ctx.keepdim = dim, keepdim
        ctx.save_for_backward(shares / total)
        out = xp.log(total) + top
        return out if keepdim else out.squeeze(axis=dim)

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        kept = grad if ctx.keepdim else array_module(grad).expand_dims(grad, ctx.dim)
        return ctx.saved_tensors[0] * kept, None, None


def log_softmax_array(x: Array, dim: int) -> Array:
    """Return the logarithm of softmax, for arrays."""
    xp = array_module(x)
    shifted = x - x.max(axis=dim, keepdims=True)
    shifted -= xp.log(xp.exp(shifted).sum(axis=dim, keepdims=True))
    return shifted


def softmax(x: Any, dim: int = -1) -> Any:
    """Return exp(x), scaled to sum to 1 along an axis."""
    return _Softmax.apply(x, dim)


def log_softmax(x: Any, dim: int = -1) -> Any:
    """Return the logarithm of softmax along an axis."""
    return _LogSoftmax.apply(x, dim)


def logsumexp(x: Any, dim: int, keepdim: bool = False) -> Any:
    """Return the logarithm of the sum of exp(x) along an axis, without overflow."""
    return _LogSumExp.apply(x, dim, keepdim)

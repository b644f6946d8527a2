"""Softmax and its logarithm along an axis."""

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

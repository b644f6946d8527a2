"""Softplus; also the worked example of docs/engine.md, which a test keeps equal to this file."""

from __future__ import annotations

from typing import Any

from gradmesh.engine.autograd.function import Function
from gradmesh.engine.autograd.ops.activation import stable_sigmoid
from gradmesh.engine.autograd.ops.floats import check_float
from gradmesh.engine.backend import Array, array_module


class _Softplus(Function):
    __slots__ = ()

    @staticmethod
    def forward(ctx: Any, x: Array) -> Array:
        check_float("softplus", x)
        xp = array_module(x)
        ctx.save_for_backward(x)
        return xp.maximum(x, x.dtype.type(0)) + xp.log1p(xp.exp(-xp.abs(x)))

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Array:
        (x,) = ctx.saved_tensors
        return grad * stable_sigmoid(x)


def softplus(x: Any) -> Any:
    """Return log(1 + exp(x)), a smooth form of ReLU."""
    return _Softplus.apply(x)

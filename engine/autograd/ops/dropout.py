"""Dropout."""

from __future__ import annotations

from typing import Any

from gradmesh.engine.autograd.function import Function
from gradmesh.engine.backend import (
    Array,
    Generator,
    as_array,
    default_generator,
    device_of,
    to_device,
)


class _Dropout(Function):
    __slots__ = ()

    @staticmethod
    def forward(ctx: Any, x: Array, rate: float, generator: Generator) -> Array:
        kept = generator.random(tuple(x.shape)) >= rate
        scale = as_array(kept.astype(x.dtype))
        if rate < 1:
            scale *= x.dtype.type(1 / (1 - rate))
        mask = to_device(scale, device_of(x))
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        return grad * ctx.saved_tensors[0], None, None


def dropout(
    x: Any, p: float = 0.5, training: bool = True, generator: Generator | None = None
) -> Any:
    """Set elements to 0 with probability p and scale the others by 1 / (1 - p)."""
    if not 0 <= p <= 1:
        raise ValueError(f"p is {p}; a probability lies in [0, 1]")
    if not training or p == 0:
        return x
    return _Dropout.apply(x, p, generator or default_generator())

"""Cross-entropy against probabilities of the classes, instead of one class."""

from __future__ import annotations

from typing import Any

from gradmesh.engine.autograd.function import Function
from gradmesh.engine.autograd.ops.floats import total, wide
from gradmesh.engine.autograd.ops.loss_reduction import reduce_losses, scaled
from gradmesh.engine.autograd.ops.softmax import log_softmax_array
from gradmesh.engine.backend import Array, array_module


class _SoftCrossEntropy(Function):
    """Take log-softmax and the loss of every class, by its probability, at once."""

    __slots__ = ("axis", "count", "dtype", "reduction", "smoothing")

    @staticmethod
    def forward(
        ctx: Any, x: Array, target: Array, weight: Any, smoothing: float, reduction: str
    ) -> Array:
        ctx.dtype, x, target = x.dtype, wide(x), wide(target)
        number = x.dtype.type
        ctx.axis = 0 if x.ndim == 1 else 1
        classes = x.shape[ctx.axis]
        factors = None
        if weight is not None:
            factors = wide(weight).reshape(-1, *[1] * (x.ndim - ctx.axis - 1))
        share = target
        if smoothing:
            share = share * number(1 - smoothing) + number(smoothing / classes)
        logs = log_softmax_array(x, ctx.axis)
        weighted = share if factors is None else share * factors
        losses = -(logs * weighted).sum(axis=ctx.axis)
        ctx.reduction, ctx.smoothing, ctx.count = reduction, smoothing, losses.size
        ctx.save_for_backward(logs, share, factors)
        return reduce_losses(losses, reduction, ctx.count).astype(ctx.dtype, copy=False)

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        logs, share, factors = ctx.saved_tensors
        xp = array_module(grad)
        slope = wide(scaled(grad, ctx.reduction, ctx.count))
        if ctx.reduction == "none":
            slope = xp.expand_dims(slope, ctx.axis)
        grad_x = grad_target = grad_weight = None
        if ctx.needs_input_grad[0]:
            weighted = share if factors is None else share * factors
            grad_x = xp.exp(logs)
            grad_x *= weighted.sum(axis=ctx.axis, keepdims=True)
            grad_x -= weighted
            grad_x *= slope
            grad_x = grad_x.astype(ctx.dtype, copy=False)
        if ctx.needs_input_grad[1]:
            grad_target = -logs * slope * logs.dtype.type(1 - ctx.smoothing)
            grad_target = grad_target if factors is None else grad_target * factors
            grad_target = grad_target.astype(ctx.dtype, copy=False)
        if ctx.needs_input_grad[2]:
            others = tuple(a for a in range(logs.ndim) if a != ctx.axis)
            grad_weight = total(-logs * share * slope, others).astype(ctx.dtype, copy=False)
        return grad_x, grad_target, grad_weight, None, None


def soft_cross_entropy(
    x: Any, target: Any, weight: Any, label_smoothing: float, reduction: str
) -> Any:
    """Return the cross-entropy of softmax(x) against probabilities, both of one shape and dtype."""
    return _SoftCrossEntropy.apply(x, target, weight, label_smoothing, reduction)

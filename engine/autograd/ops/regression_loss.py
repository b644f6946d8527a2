"""Losses of a difference that grow with its size and not with its square."""

from __future__ import annotations

from typing import Any

from gradmesh.engine.autograd.function import Function
from gradmesh.engine.autograd.ops.loss_reduction import (
    check_reduction,
    matched,
    reduce_losses,
    scaled,
)
from gradmesh.engine.backend import Array, array_module


class _L1Loss(Function):
    __slots__ = ("reduction",)

    @staticmethod
    def forward(ctx: Any, x: Array, target: Array, reduction: str) -> Array:
        error = x - target
        ctx.reduction = reduction
        ctx.save_for_backward(error)
        return reduce_losses(array_module(x).abs(error), reduction, error.size)

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        (error,) = ctx.saved_tensors
        slope = array_module(grad).sign(error) * scaled(grad, ctx.reduction, error.size)
        return slope, -slope if ctx.needs_input_grad[1] else None, None


class _HuberLoss(Function):
    """Take half the square of errors up to a width, and a line of the same slope beyond."""

    __slots__ = ("is_smooth", "reduction", "width")

    @staticmethod
    def forward(
        ctx: Any, x: Array, target: Array, width: float, is_smooth: bool, reduction: str
    ) -> Array:
        xp = array_module(x)
        number = x.dtype.type
        error = x - target
        size = xp.abs(error)
        ctx.width, ctx.is_smooth, ctx.reduction = width, is_smooth, reduction
        ctx.save_for_backward(error)
        square = number(0.5) * error * error
        line = size - number(0.5 * width)
        if is_smooth:
            square /= number(width)
        else:
            line *= number(width)
        losses = xp.where(size < number(width), square, line)
        return reduce_losses(losses, reduction, error.size)

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        (error,) = ctx.saved_tensors
        xp = array_module(grad)
        width = error.dtype.type(ctx.width)
        slope = xp.maximum(xp.minimum(error, width), -width)
        if ctx.is_smooth:
            slope /= width
        slope = slope * scaled(grad, ctx.reduction, error.size)
        return slope, -slope if ctx.needs_input_grad[1] else None, None, None, None


def l1_loss(x: Any, target: Any, reduction: str = "mean") -> Any:
    """Return the absolute error; shapes that differ broadcast, with a warning."""
    check_reduction(reduction)
    return _L1Loss.apply(*matched("l1_loss", x, target), reduction)


def smooth_l1_loss(x: Any, target: Any, reduction: str = "mean", beta: float = 1.0) -> Any:
    """Return the absolute error less beta / 2, and below beta its square over 2 * beta.

    Shapes that differ broadcast, with a warning. With beta 0 it is the absolute error.

    Raises:
        ValueError: If beta is negative.
    """
    check_reduction(reduction)
    if not beta >= 0:
        raise ValueError(f"smooth_l1_loss: beta is {beta}; use 0 or more")
    operands = matched("smooth_l1_loss", x, target)
    if beta == 0:
        return _L1Loss.apply(*operands, reduction)
    return _HuberLoss.apply(*operands, float(beta), True, reduction)


def huber_loss(x: Any, target: Any, reduction: str = "mean", delta: float = 1.0) -> Any:
    """Return half the squared error, and beyond delta a line of slope delta.

    Shapes that differ broadcast, with a warning.

    Raises:
        ValueError: If delta is not positive.
    """
    check_reduction(reduction)
    if not delta > 0:
        raise ValueError(f"huber_loss: delta is {delta}; use a positive number")
    return _HuberLoss.apply(*matched("huber_loss", x, target), float(delta), False, reduction)

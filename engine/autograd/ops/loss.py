"""Losses of a prediction against a target of the same shape, each one op; and their reductions.

Value and gradient of an op are computed in one stable formula.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from gradmesh.engine import kernels
from gradmesh.engine.autograd.function import Function
from gradmesh.engine.autograd.ops.activation import stable_sigmoid
from gradmesh.engine.autograd.ops.broadcast import broadcast_shape
from gradmesh.engine.autograd.ops.floats import check_float
from gradmesh.engine.autograd.ops.shape import broadcast_to
from gradmesh.engine.backend import Array, DtypeError, ShapeError, array_module, is_plain
from gradmesh.engine.backend.dtype import FLOATS, float32, promote
from gradmesh.engine.errors import GradientError

_REDUCTIONS = ("mean", "sum", "none")


def check_reduction(reduction: str) -> None:
    """Raise ValueError unless the reduction is one of torch's."""
    if reduction not in _REDUCTIONS:
        raise ValueError(f"reduction is {reduction!r}; use one of {_REDUCTIONS}")


def reduce_losses(losses: Array, reduction: str, count: Any) -> Array:
    """Reduce losses; count is what a mean divides by, an empty mean is NaN as in torch."""
    if reduction == "none":
        return losses
    if losses.dtype.itemsize < 4:
        # Half precision holds neither long sums nor large counts.
        return reduce_losses(losses.astype(float32), reduction, count).astype(losses.dtype)
    total = losses.sum()
    if reduction == "sum":
        return total
    return total / count if count else total + float("nan")


def scaled(grad: Array, reduction: str, count: Any) -> Array:
    """Return the gradient of each loss from that of the reduced one."""
    if reduction != "mean" or not count:
        return grad
    dtype = grad.dtype
    # float() because the count may live on a device.
    if dtype.itemsize < 4:
        return (grad.astype(float32) / float(count)).astype(dtype)
    return grad / dtype.type(float(count))


def matched(name: str, x: Any, target: Any) -> tuple[Any, Any]:
    """Return input and target in one shape and one float dtype.

    Shapes that differ broadcast, with torch's warning: [n, 1] against [n] is an [n, n] of losses,
    which is hardly ever meant.

    Raises:
        ShapeError: If the shapes do not broadcast.
        DtypeError: If neither is of floats.
    """
    # Before they broadcast, so that gradients of half precision are rounded once.
    x, target, shapes = *in_one_dtype(name, x, target), (x.shape, target.shape)
    if shapes[0] == shapes[1]:
        return x, target
    shape = broadcast_shape(name, *shapes)
    warnings.warn(
        f"{name}: input {shapes[0]} and target {shapes[1]} differ and broadcast to {shape}; "
        "give both one shape, with reshape() or expand(), if that is not meant",
        stacklevel=3,
    )
    return broadcast_to(x, shape), broadcast_to(target, shape)


def in_one_dtype(name: str, x: Any, target: Any) -> tuple[Any, Any]:
    """Return input and target in their common dtype.

    Raises:
        DtypeError: If neither is of floats.
    """
    dtype = x.dtype
    if dtype != target.dtype:
        broadcast_shape(name, x.shape, target.shape)
        # As if they had been broadcast: one without axes counts as much as the other.
        dtype = promote(dtype, target.dtype)
    if dtype not in FLOATS:
        raise DtypeError(f"{name}: takes floats, not {dtype}; cast with .float() first")
    return x.to(dtype), target.to(dtype)


def check_fixed(name: str, **weights: Any) -> None:
    """Raise GradientError if weights require a gradient: as in torch they have none."""
    for label, weight in weights.items():
        if getattr(weight, "requires_grad", False):
            raise GradientError(f"{name}: {label} has no gradient; detach it")


def _check_same_shape(name: str, x: Array, target: Array) -> None:
    if x.shape != target.shape:
        raise ShapeError(f"{name}: input {tuple(x.shape)} and target {tuple(target.shape)} differ")


def _check_factors(name: str, shape: tuple[int, ...], **weights: Any) -> None:
    """Raise ShapeError if weights do not broadcast to a shape: there would be more losses."""
    for label, weight in weights.items():
        if weight is not None and broadcast_shape(name, shape, weight.shape) != shape:
            raise ShapeError(f"{name}: {label} {tuple(weight.shape)} for an input {shape}")


class _MseLoss(Function):
    __slots__ = ("reduction",)

    @staticmethod
    def forward(ctx: Any, x: Array, target: Array, reduction: str) -> Array:
        ctx.reduction = reduction
        if reduction != "none" and _has_kernel(x, target):
            error, total = _run(kernels.fused.mse, x, target, reduction)
            ctx.save_for_backward(error)
            return total
        error = x - target
        ctx.save_for_backward(error)
        return reduce_losses(error * error, reduction, error.size)

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        (error,) = ctx.saved_tensors
        scale = scaled(grad, ctx.reduction, error.size)
        slope = error * (scale + scale)
        return slope, -slope if ctx.needs_input_grad[1] else None, None


class _Bce(Function):
    """Take the plain form, without weights, whose gradient is known with the value."""

    __slots__ = ("reduction",)

    @staticmethod
    def forward(ctx: Any, x: Array, target: Array, reduction: str) -> Array:
        slope, total = _run(kernels.fused.bce_with_logits, x, target, reduction)
        ctx.reduction = reduction
        ctx.save_for_backward(slope)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        (slope,) = ctx.saved_tensors
        # A Python number takes the array's dtype and costs half of an array without axes.
        scale = float(grad)
        if ctx.reduction == "mean" and slope.size:
            scale /= slope.size
        return slope * scale, None, None


class _BceWithLogits(Function):
    __slots__ = ("kind", "reduction")

    @staticmethod
    def forward(ctx: Any, x: Array, target: Array, weight: Any, pos: Any, reduction: str) -> Array:
        ctx.kind = target.dtype
        target, weight, pos = (
            part if part is None else part.astype(x.dtype, copy=False)
            for part in (target, weight, pos)
        )
        ctx.reduction = reduction
        ctx.save_for_backward(x, target, weight, pos)
        tail = _tail(x)
        scale = 1 if pos is None else 1 + (pos - 1) * target
        losses = (1 - target) * x + scale * tail
        if weight is not None:
            losses = losses * weight
        return reduce_losses(losses, reduction, x.size)

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        x, target, weight, pos = ctx.saved_tensors
        each = scaled(grad, ctx.reduction, x.size)
        of_target = None
        if ctx.needs_input_grad[1]:
            of_target = each * (-x if pos is None else (pos - 1) * _tail(x) - x)
            of_target = of_target if weight is None else of_target * weight
            of_target = of_target.astype(ctx.kind, copy=False)
        out = stable_sigmoid(x)
        if pos is None:
            out -= target
        else:
            out = (1 + (pos - 1) * target) * (out - 1) + (1 - target)
        if weight is not None:
            out *= weight
        out *= each
        return out, of_target, None, None, None


def _tail(x: Array) -> Array:
    """Return log(1 + exp(-x)) without overflow for either sign of x."""
    xp = array_module(x)
    found: Array = xp.log1p(xp.exp(-xp.abs(x))) + xp.maximum(-x, x.dtype.type(0))
    return found


def _has_kernel(x: Array, target: Array) -> bool:
    # Both have one dtype, so checking one is enough.
    return (
        is_plain(x)
        and target.dtype.num == x.dtype.num
        and x.flags.c_contiguous
        and target.flags.c_contiguous
    )


def _run(kernel: Any, x: Array, target: Array, reduction: str) -> tuple[Array, Array]:
    """Run a loss kernel; return its result per element, and the loss. An empty mean is NaN."""
    part = np.empty(x.size, dtype=x.dtype)
    total = np.empty((), dtype=x.dtype)
    count = x.size if reduction == "mean" else 1
    kernel(x.reshape(-1), target.reshape(-1), part, count, total)
    return part.reshape(x.shape), total


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


def mse_loss(x: Any, target: Any, reduction: str = "mean") -> Any:
    """Return the squared error; shapes that differ broadcast, with a warning."""
    check_reduction(reduction)
    values, wanted = x.data, target.data
    dtype = values.dtype
    # Most dtypes are single objects; `is` costs less than a comparison, and `matched` compares.
    if values.shape != wanted.shape or dtype is not wanted.dtype or dtype.kind in "iub":
        x, target = matched("mse_loss", x, target)
    return _MseLoss.apply(x, target, reduction)


def binary_cross_entropy_with_logits(
    x: Any, target: Any, weight: Any = None, reduction: str = "mean", pos_weight: Any = None
) -> Any:
    """Return the cross-entropy of sigmoid(x) against targets in [0, 1], in the dtype of x.

    Args:
        x: Logits.
        target: Probabilities, in the shape of x.
        weight: Factors of the losses, in a shape that broadcasts to that of x.
        reduction: `"mean"` (over all elements), `"sum"` or `"none"`.
        pos_weight: Factors of the positive part, in a shape that broadcasts to that of x.
    """
    check_reduction(reduction)
    values, wanted = x.data, target.data
    name = "binary_cross_entropy_with_logits"
    _check_same_shape(name, values, wanted)
    is_simple = weight is None and pos_weight is None and reduction != "none"
    if not is_simple:
        check_fixed(name, weight=weight, pos_weight=pos_weight)
        _check_factors(name, values.shape, weight=weight, pos_weight=pos_weight)
    is_simple = is_simple and not target._requires_grad
    if is_simple and _has_kernel(values, wanted):
        return _Bce.apply(x, target, reduction)
    check_float(name, values)
    return _BceWithLogits.apply(x, target, weight, pos_weight, reduction)


def l1_loss(x: Any, target: Any, reduction: str = "mean") -> Any:
    """Return the absolute error; shapes that differ broadcast, with a warning."""
    check_reduction(reduction)
    return _L1Loss.apply(*matched("l1_loss", x, target), reduction)


def smooth_l1_loss(x: Any, target: Any, reduction: str = "mean", beta: float = 1.0) -> Any:
    """Return the smooth L1 loss: quadratic for errors below beta, linear beyond.

    It is error**2 / (2 * beta) below beta, and |error| - beta / 2 beyond; with beta 0 the absolute
    error. Shapes that differ broadcast, with a warning.

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
    """Return the Huber loss: quadratic for errors below delta, linear beyond.

    Shapes that differ broadcast, with a warning.

    Raises:
        ValueError: If delta is not positive.
    """
    check_reduction(reduction)
    if not delta > 0:
        raise ValueError(f"huber_loss: delta is {delta}; use a positive number")
    return _HuberLoss.apply(*matched("huber_loss", x, target), float(delta), False, reduction)

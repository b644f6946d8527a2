"""Losses, each one op: value and gradient are computed in one stable formula."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmesh.engine import kernels
from gradmesh.engine.autograd.function import Function
from gradmesh.engine.autograd.ops.activation import stable_sigmoid
from gradmesh.engine.autograd.ops.softmax import log_softmax_array
from gradmesh.engine.backend import Array, DtypeError, ShapeError, array_module, is_plain

_REDUCTIONS = ("mean", "sum", "none")


def _reduce(losses: Array, reduction: str, count: Any) -> Array:
    """Reduce losses; count is what a mean divides by, an empty mean is NaN as in torch."""
    if reduction == "none":
        return losses
    total = losses.sum()
    if reduction == "sum":
        return total
    return total / count if count else total + float("nan")


def _scaled(grad: Array, reduction: str, count: Any) -> Array:
    # float() because the count may live on a device.
    return grad / grad.dtype.type(float(count)) if reduction == "mean" and count else grad


def _check_reduction(reduction: str) -> None:
    if reduction not in _REDUCTIONS:
        raise ValueError(f"reduction is {reduction!r}; use one of {_REDUCTIONS}")


def _check_same_shape(name: str, x: Array, target: Array) -> None:
    if x.shape != target.shape:
        raise ShapeError(f"{name}: input {tuple(x.shape)} and target {tuple(target.shape)} differ")


class _MseLoss(Function):
    __slots__ = ("reduction",)

    @staticmethod
    def forward(ctx: Any, x: Array, target: Array, reduction: str) -> Array:
        _check_same_shape("mse_loss", x, target)
        ctx.reduction = reduction
        if reduction != "none" and _has_kernel(x, target):
            error, total = _run(kernels.fused.mse, x, target, reduction)
            ctx.save_for_backward(error)
            return total
        error = x - target
        ctx.save_for_backward(error)
        return _reduce(error * error, reduction, x.dtype.type(error.size))

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        (error,) = ctx.saved_tensors
        slope = error * (_scaled(grad, ctx.reduction, error.size) * 2)
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
    __slots__ = ("reduction",)

    @staticmethod
    def forward(ctx: Any, x: Array, target: Array, weight: Any, pos: Any, reduction: str) -> Array:
        xp = array_module(x)
        target = target.astype(x.dtype, copy=False)
        ctx.reduction = reduction
        ctx.save_for_backward(x, target, weight, pos)
        # log(1 + exp(-x)) without overflow for either sign of x.
        tail = xp.log1p(xp.exp(-xp.abs(x))) + xp.maximum(-x, x.dtype.type(0))
        scale = 1 if pos is None else 1 + (pos - 1) * target
        losses = (1 - target) * x + scale * tail
        if weight is not None:
            losses = losses * weight
        return _reduce(losses, reduction, x.dtype.type(x.size))

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        x, target, weight, pos = ctx.saved_tensors
        out = stable_sigmoid(x)
        if pos is None:
            out -= target
        else:
            out = (1 + (pos - 1) * target) * (out - 1) + (1 - target)
        if weight is not None:
            out *= weight
        out *= _scaled(grad, ctx.reduction, x.size)
        return out, None, None, None, None


def _has_kernel(x: Array, target: Array) -> bool:
    # Of one dtype, so that asking for one is enough.
    return (
        is_plain(x)
        and target.dtype.num == x.dtype.num
        and x.flags.c_contiguous
        and target.flags.c_contiguous
    )


def _run(kernel: Any, x: Array, target: Array, reduction: str) -> tuple[Array, Array]:
    """Return what a loss kernel leaves per element, and the loss; an empty mean is NaN."""
    part = np.empty(x.shape, dtype=x.dtype)
    total = np.empty((), dtype=x.dtype)
    count = x.size if reduction == "mean" else 1
    kernel(x.reshape(-1), target.reshape(-1), part.reshape(-1), count, total)
    return part, total


class _NllLoss(Function):
    """Pick the negated log-probability of each target class."""

    __slots__ = ("reduction", "shape", "total")

    @staticmethod
    def forward(
        ctx: Any, x: Array, target: Array, weight: Any, ignore: int, reduction: str
    ) -> Array:
        x2, flat = _as_rows("nll_loss", x, target)
        xp = array_module(x)
        scale = _class_weights(xp, x, flat, weight, ignore)
        safe = xp.where(flat == ignore, 0, flat)
        ctx.reduction, ctx.shape, ctx.total = reduction, x.shape, scale.sum()
        ctx.save_for_backward(safe, scale)
        losses = -x2[xp.arange(len(safe)), safe] * scale
        if reduction == "none":
            return losses.reshape(target.shape)
        return _reduce(losses, reduction, ctx.total)

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        safe, scale = ctx.saved_tensors
        slope = -_scaled(grad, ctx.reduction, ctx.total).reshape(-1) * scale
        return _one_hot(ctx.shape, safe, slope), None, None, None, None


class _CrossEntropy(Function):
    """Take log-softmax and the loss of the target class at once."""

    __slots__ = ("reduction", "shape", "smoothing", "total")

    @staticmethod
    def forward(
        ctx: Any,
        x: Array,
        target: Array,
        weight: Any,
        ignore: int,
        smoothing: float,
        reduction: str,
    ) -> Array:
        x2, flat = _as_rows("cross_entropy", x, target)
        xp = array_module(x)
        logs = log_softmax_array(x2, 1)
        scale = _class_weights(xp, x, flat, weight, ignore)
        safe = xp.where(flat == ignore, 0, flat)
        losses = -logs[xp.arange(len(safe)), safe] * scale
        if smoothing:
            classes = xp.ones(x2.shape[1], dtype=x.dtype) if weight is None else weight
            even = -(logs * classes).sum(axis=1) * (flat != ignore)
            losses = (1 - smoothing) * losses + even * (smoothing / x2.shape[1])
        ctx.reduction, ctx.shape, ctx.total = reduction, x.shape, scale.sum()
        ctx.smoothing = smoothing
        ctx.save_for_backward(logs, safe, scale, flat != ignore, weight)
        if reduction == "none":
            return losses.reshape(target.shape)
        return _reduce(losses, reduction, ctx.total)

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        logs, safe, scale, kept, weight = ctx.saved_tensors
        xp = array_module(grad)
        slope = _scaled(grad, ctx.reduction, ctx.total).reshape(-1, 1)
        share = xp.zeros_like(logs)
        share[xp.arange(len(safe)), safe] = scale * (1 - ctx.smoothing)
        if ctx.smoothing:
            classes = xp.ones(logs.shape[1], dtype=logs.dtype) if weight is None else weight
            share += kept[:, None] * classes * logs.dtype.type(ctx.smoothing / logs.shape[1])
        out = xp.exp(logs)
        out *= share.sum(axis=1, keepdims=True)
        out -= share
        out *= slope
        return _from_rows(out, ctx.shape), None, None, None, None, None


def _as_rows(name: str, x: Array, target: Array) -> tuple[Array, Array]:
    """Return input as [n, classes] and target as [n], whatever axes follow the classes."""
    if target.dtype.kind not in "iu":
        raise DtypeError(f"{name}: targets are class numbers, not {target.dtype}")
    if x.ndim < 1 or (x.shape[:1] + x.shape[2:] != target.shape and x.ndim > 1):
        raise ShapeError(
            f"{name}: input {tuple(x.shape)} does not fit target {tuple(target.shape)}"
        )
    rows = x[None] if x.ndim == 1 else array_module(x).moveaxis(x, 1, -1).reshape(-1, x.shape[1])
    return rows, target.reshape(-1)


def _from_rows(rows: Array, shape: tuple[int, ...]) -> Array:
    if len(shape) < 3:
        return rows.reshape(shape)
    moved = rows.reshape((shape[0], *shape[2:], shape[1]))
    return array_module(rows).moveaxis(moved, -1, 1)


def _one_hot(shape: tuple[int, ...], places: Array, values: Array) -> Array:
    xp = array_module(values)
    classes = shape[0] if len(shape) == 1 else shape[1]
    out = xp.zeros((len(places), classes), dtype=values.dtype)
    out[xp.arange(len(places)), places] = values
    return _from_rows(out, shape)


def _class_weights(xp: Any, x: Array, target: Array, weight: Any, ignore: int) -> Array:
    classes = x.shape[0] if x.ndim == 1 else x.shape[1]
    kept = target != ignore
    if bool(((target < 0) | (target >= classes))[kept].any()):
        raise IndexError(f"a target lies outside the {classes} classes")
    if weight is None:
        return kept.astype(x.dtype)
    return xp.where(kept, weight[xp.where(kept, target, 0)], x.dtype.type(0))


def mse_loss(x: Any, target: Any, reduction: str = "mean") -> Any:
    """Return the squared error."""
    _check_reduction(reduction)
    return _MseLoss.apply(x, target, reduction)


def l1_loss(x: Any, target: Any, reduction: str = "mean") -> Any:
    """Return the absolute error."""
    _check_reduction(reduction)
    _check_same_shape("l1_loss", x.data, target.data)
    errors = (x - target).abs()
    return errors if reduction == "none" else getattr(errors, reduction)()


def binary_cross_entropy_with_logits(
    x: Any, target: Any, weight: Any = None, reduction: str = "mean", pos_weight: Any = None
) -> Any:
    """Return the cross-entropy of sigmoid(x) against targets in [0, 1]."""
    _check_reduction(reduction)
    values, wanted = x.data, target.data
    _check_same_shape("binary_cross_entropy_with_logits", values, wanted)
    is_simple = weight is None and pos_weight is None and reduction != "none"
    if is_simple and _has_kernel(values, wanted):
        return _Bce.apply(x, target, reduction)
    return _BceWithLogits.apply(x, target, weight, pos_weight, reduction)


def nll_loss(
    x: Any, target: Any, weight: Any = None, ignore_index: int = -100, reduction: str = "mean"
) -> Any:
    """Return the negated log-probability of the target class.

    Args:
        x: Log-probabilities, [n, classes, ...].
        target: Class numbers, [n, ...].
        weight: Weight per class, [classes].
        ignore_index: Targets of this value count for nothing.
        reduction: `"mean"` (weighted), `"sum"` or `"none"`.
    """
    _check_reduction(reduction)
    return _NllLoss.apply(x, target, weight, ignore_index, reduction)


def cross_entropy(
    x: Any,
    target: Any,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """Return the cross-entropy of softmax(x); arguments as in `nll_loss`, x are logits."""
    _check_reduction(reduction)
    return _CrossEntropy.apply(x, target, weight, ignore_index, label_smoothing, reduction)

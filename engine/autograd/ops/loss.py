"""Losses, each one op: value and gradient are computed in one stable formula."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmesh.engine import kernels
from gradmesh.engine.autograd.function import Function
from gradmesh.engine.autograd.ops.activation import stable_sigmoid
from gradmesh.engine.autograd.ops.broadcast import broadcast_shape
from gradmesh.engine.autograd.ops.floats import check_float, wide
from gradmesh.engine.autograd.ops.loss_reduction import (
    check_reduction,
    in_one_dtype,
    matched,
    reduce_losses,
    scaled,
)
from gradmesh.engine.autograd.ops.soft_target import soft_cross_entropy
from gradmesh.engine.autograd.ops.softmax import log_softmax_array
from gradmesh.engine.backend import Array, DtypeError, ShapeError, array_module, is_plain
from gradmesh.engine.backend.dtype import FLOATS, float32
from gradmesh.engine.errors import GradientError


def _check_same_shape(name: str, x: Array, target: Array) -> None:
    if x.shape != target.shape:
        raise ShapeError(f"{name}: input {tuple(x.shape)} and target {tuple(target.shape)} differ")


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
    # Of one dtype, so that asking for one is enough.
    return (
        is_plain(x)
        and target.dtype.num == x.dtype.num
        and x.flags.c_contiguous
        and target.flags.c_contiguous
    )


def _run(kernel: Any, x: Array, target: Array, reduction: str) -> tuple[Array, Array]:
    """Return what a loss kernel leaves per element, and the loss; an empty mean is NaN."""
    part = np.empty(x.size, dtype=x.dtype)
    total = np.empty((), dtype=x.dtype)
    count = x.size if reduction == "mean" else 1
    kernel(x.reshape(-1), target.reshape(-1), part, count, total)
    return part.reshape(x.shape), total


class _NllLoss(Function):
    """Pick the negated log-probability of each target class."""

    __slots__ = ("reduction", "shape", "total")

    @staticmethod
    def forward(
        ctx: Any, x: Array, target: Array, weight: Any, ignore: int, reduction: str
    ) -> Array:
        x2, flat = _as_rows("nll_loss", x, target)
        xp = array_module(x)
        scale, kept = _class_weights("nll_loss", x, flat, weight, ignore)
        safe = xp.where(kept, flat, 0)
        ctx.reduction, ctx.shape, ctx.total = reduction, x.shape, _total(scale)
        ctx.save_for_backward(safe, scale, kept)
        losses = _of_kept(kept, -x2[xp.arange(len(safe)), safe] * scale)
        if reduction == "none":
            return losses.reshape(target.shape)
        return reduce_losses(losses, reduction, ctx.total)

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        safe, scale, kept = ctx.saved_tensors
        slope = _of_kept(kept, -scaled(grad, ctx.reduction, ctx.total).reshape(-1) * scale)
        return _one_hot(ctx.shape, safe, slope), None, None, None, None


class _CrossEntropy(Function):
    """Take log-softmax and the loss of the target class at once."""

    __slots__ = ("dtype", "reduction", "shape", "smoothing", "total")

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
        logs = log_softmax_array(wide(x2), 1)
        scale, kept = _class_weights("cross_entropy", x, flat, weight, ignore)
        safe = xp.where(kept, flat, 0)
        losses = -logs[xp.arange(len(safe)), safe] * scale
        if smoothing:
            classes = xp.ones(x2.shape[1], dtype=logs.dtype) if weight is None else weight
            even = -(logs * classes).sum(axis=1)
            number = logs.dtype.type
            losses = losses * number(1 - smoothing) + even * number(smoothing / x2.shape[1])
        losses = _of_kept(kept, losses)
        ctx.dtype = x.dtype
        ctx.reduction, ctx.shape, ctx.total = reduction, x.shape, _total(scale)
        ctx.smoothing = smoothing
        ctx.save_for_backward(logs, safe, scale, kept, weight)
        if reduction == "none":
            return losses.reshape(target.shape).astype(x.dtype, copy=False)
        return reduce_losses(losses, reduction, ctx.total).astype(x.dtype, copy=False)

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        logs, safe, scale, kept, weight = ctx.saved_tensors
        xp = array_module(grad)
        slope = scaled(grad, ctx.reduction, ctx.total).reshape(-1, 1)
        share = xp.zeros_like(logs)
        share[xp.arange(len(safe)), safe] = scale * (1 - ctx.smoothing)
        if ctx.smoothing:
            classes = xp.ones(logs.shape[1], dtype=logs.dtype) if weight is None else weight
            share += kept[:, None] * classes * logs.dtype.type(ctx.smoothing / logs.shape[1])
        out = xp.exp(logs)
        out *= share.sum(axis=1, keepdims=True)
        out -= share
        out *= slope
        out = out.astype(ctx.dtype, copy=False)
        return _from_rows(out, ctx.shape), None, None, None, None, None


def _as_rows(name: str, x: Array, target: Array) -> tuple[Array, Array]:
    """Return input as [n, classes] and target as [n], whatever axes follow the classes."""
    if x.dtype.kind in "iub":
        raise DtypeError(f"{name}: takes floats, not {x.dtype}; cast with .float() first")
    if target.dtype.kind not in "iu":
        more = ", or probabilities in the shape of the input" if name == "cross_entropy" else ""
        raise DtypeError(
            f"{name}: targets are class numbers{more}, not {target.dtype} of {tuple(target.shape)} "
            f"for an input of {tuple(x.shape)}"
        )
    shape = x.shape
    if len(shape) > 1:
        is_fit = shape[:1] + shape[2:] == target.shape
    else:
        is_fit = len(shape) == 1 and target.shape in ((), (1,))
    if not is_fit:
        raise ShapeError(
            f"{name}: input {tuple(x.shape)} does not fit target {tuple(target.shape)}"
        )
    if not x.shape[0 if x.ndim == 1 else 1]:
        raise ShapeError(f"{name}: input {tuple(x.shape)} has no classes")
    flat = target.reshape(-1)
    if x.ndim == 1:
        return x[None], flat
    return array_module(x).moveaxis(x, 1, -1).reshape(flat.size, x.shape[1]), flat


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


def _of_kept(kept: Array, values: Array) -> Array:
    """Return values, 0 for ignored targets: a product with 0 would keep their NaN and infinity."""
    return values if kept.all() else array_module(values).where(kept, values, values.dtype.type(0))


def _check_fixed(name: str, **weights: Any) -> None:
    """Raise GradientError if weights want a gradient: as in torch they have none."""
    for label, weight in weights.items():
        if getattr(weight, "requires_grad", False):
            raise GradientError(f"{name}: {label} has no gradient; detach it")


def _check_factors(name: str, shape: tuple[int, ...], **weights: Any) -> None:
    """Raise ShapeError if weights do not broadcast to a shape: there would be more losses."""
    for label, weight in weights.items():
        if weight is not None and broadcast_shape(name, shape, weight.shape) != shape:
            raise ShapeError(f"{name}: {label} {tuple(weight.shape)} for an input {shape}")


def _class_weights(
    name: str, x: Array, target: Array, weight: Any, ignore: int
) -> tuple[Array, Array]:
    """Return the weight of each target, and which targets count."""
    classes = x.shape[0] if x.ndim == 1 else x.shape[1]
    kept = target != ignore
    if bool(((target < 0) | (target >= classes))[kept].any()):
        raise IndexError(f"{name}: a target lies outside the {classes} classes")
    if weight is None:
        return kept.astype(x.dtype), kept
    _check_weight(name, weight, classes, x.dtype)
    xp = array_module(x)
    return xp.where(kept, weight[xp.where(kept, target, 0)], x.dtype.type(0)), kept


def _check_weight(name: str, weight: Any, classes: int, dtype: Any) -> None:
    if tuple(weight.shape) != (classes,):
        raise ShapeError(f"{name}: weight {tuple(weight.shape)} does not fit {classes} classes")
    if weight.dtype != dtype:
        raise DtypeError(f"{name}: weight {weight.dtype} and input {dtype} differ; cast one")


def _total(scale: Array) -> Array:
    """Return the sum of weights that a mean divides by; half precision cannot count far."""
    return scale.sum(dtype=float32) if scale.dtype.itemsize < 4 else scale.sum()


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
        _check_fixed(name, weight=weight, pos_weight=pos_weight)
        _check_factors(name, values.shape, weight=weight, pos_weight=pos_weight)
    is_simple = is_simple and not target._requires_grad
    if is_simple and _has_kernel(values, wanted):
        return _Bce.apply(x, target, reduction)
    check_float(name, values)
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
    check_reduction(reduction)
    _check_fixed("nll_loss", weight=weight)
    return _NllLoss.apply(x, target, weight, ignore_index, reduction)


def cross_entropy(
    x: Any,
    target: Any,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """Return the cross-entropy of softmax(x) against classes, or against probabilities of them.

    Args:
        x: Logits, [n, classes, ...], or [classes].
        target: Class numbers, [n, ...], or probabilities in the shape of x.
        weight: Weight per class, [classes], in the dtype of x.
        ignore_index: Class numbers of this value count for nothing; not for probabilities.
        reduction: `"mean"` (weighted by class for class numbers), `"sum"` or `"none"`.
        label_smoothing: Share of each target that is spread evenly over the classes.
    """
    check_reduction(reduction)
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"cross_entropy: label_smoothing is {label_smoothing}; use 0 to 1")
    values, wanted = x.data, target.data
    if values.shape == wanted.shape and values.shape and wanted.dtype in FLOATS:
        if ignore_index >= 0:
            raise ValueError(
                f"cross_entropy: ignore_index is {ignore_index}, but probabilities have no index; "
                "set probabilities to 0 instead"
            )
        if not values.shape[0 if values.ndim == 1 else 1]:
            raise ShapeError(f"cross_entropy: input {tuple(values.shape)} has no classes")
        x, target = in_one_dtype("cross_entropy", x, target)
        if weight is not None:
            _check_weight("cross_entropy", weight, x.shape[0 if x.ndim == 1 else 1], x.dtype)
        return soft_cross_entropy(x, target, weight, label_smoothing, reduction)
    if weight is not None:
        _check_fixed("cross_entropy", weight=weight)
    return _CrossEntropy.apply(x, target, weight, ignore_index, label_smoothing, reduction)

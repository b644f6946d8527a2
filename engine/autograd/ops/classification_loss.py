"""Losses of class scores against class numbers or class probabilities, each one op."""

from __future__ import annotations

from typing import Any

from gradmesh.engine.autograd.function import Function
from gradmesh.engine.autograd.ops.floats import total, wide
from gradmesh.engine.autograd.ops.loss import (
    check_fixed,
    check_reduction,
    in_one_dtype,
    reduce_losses,
    scaled,
)
from gradmesh.engine.autograd.ops.softmax import log_softmax_array
from gradmesh.engine.backend import Array, DtypeError, ShapeError, array_module
from gradmesh.engine.backend.dtype import FLOATS, float32


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


def _as_rows(name: str, x: Array, target: Array) -> tuple[Array, Array]:
    """Return input as [n, classes] and target as [n], for any axes after the classes."""
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


def _one_hot(shape: tuple[int, ...], positions: Array, values: Array) -> Array:
    xp = array_module(values)
    classes = shape[0] if len(shape) == 1 else shape[1]
    out = xp.zeros((len(positions), classes), dtype=values.dtype)
    out[xp.arange(len(positions)), positions] = values
    return _from_rows(out, shape)


def _of_kept(kept: Array, values: Array) -> Array:
    """Return values, 0 for ignored targets: a product with 0 would keep their NaN and infinity."""
    return values if kept.all() else array_module(values).where(kept, values, values.dtype.type(0))


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


def nll_loss(
    x: Any, target: Any, weight: Any = None, ignore_index: int = -100, reduction: str = "mean"
) -> Any:
    """Return the negative log-likelihood of the target classes.

    Args:
        x: Log-probabilities, [n, classes, ...].
        target: Class numbers, [n, ...].
        weight: Weight per class, [classes].
        ignore_index: Targets of this value count for nothing.
        reduction: `"mean"` (weighted), `"sum"` or `"none"`.
    """
    check_reduction(reduction)
    check_fixed("nll_loss", weight=weight)
    return _NllLoss.apply(x, target, weight, ignore_index, reduction)


def cross_entropy(
    x: Any,
    target: Any,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """Return the cross-entropy of softmax(x) against class indices or class probabilities.

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
        return _SoftCrossEntropy.apply(x, target, weight, label_smoothing, reduction)
    if weight is not None:
        check_fixed("cross_entropy", weight=weight)
    return _CrossEntropy.apply(x, target, weight, ignore_index, label_smoothing, reduction)

"""Batch, layer and group normalisation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradmesh.engine import kernels
from gradmesh.engine.autograd.function import Function
from gradmesh.engine.autograd.ops.floats import check_float, total, wide
from gradmesh.engine.backend import Array, DtypeError, ShapeError, array_module, is_plain
from gradmesh.engine.backend.dtype import bfloat16, float16


class _BatchNorm(Function):
    """Normalise each channel; with given statistics it is a fixed affine map."""

    __slots__ = ("count", "kind", "shape", "uses_batch")

    @staticmethod
    def forward(
        ctx: Any, x: Array, weight: Any, bias: Any, mean: Array, invstd: Array, uses_batch: bool
    ) -> Array:
        ctx.shape, ctx.uses_batch = x.shape, uses_batch
        ctx.kind = parameter_dtype("batch_norm", x, weight, bias)
        cube = _cube(x)
        ctx.count = max(x.shape[0] * cube.shape[2], 1)
        scale = invstd if weight is None else weight * invstd
        shift = -mean * scale if bias is None else bias - mean * scale
        ctx.save_for_backward(x, weight, mean, invstd)
        return _affine(cube, scale, shift).reshape(x.shape)

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        x, weight, mean, invstd = ctx.saved_tensors
        cube = _cube(x)
        given = grad.reshape(cube.shape)
        sums, products = _grad_sums(given, cube, mean)
        normalized = products * invstd
        scale = invstd if weight is None else weight * invstd
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = _grad_input(ctx, given, cube, (scale, mean, invstd, sums, normalized))
        return (
            grad_x,
            normalized.astype(ctx.kind) if ctx.needs_input_grad[1] else None,
            sums.astype(ctx.kind) if ctx.needs_input_grad[2] else None,
            None,
            None,
            None,
        )


def _grad_input(ctx: Any, given: Array, cube: Array, stats: tuple[Array, ...]) -> Array:
    scale, mean, invstd, sums, normalized = stats
    xp = array_module(cube)
    if ctx.uses_batch:
        of_x = -scale * invstd * normalized / ctx.count
        constant = -scale * sums / ctx.count - of_x * mean
    else:
        of_x = constant = xp.zeros_like(scale)
    wider = wide(cube)
    kind = wider.dtype
    numbers = scale.astype(kind), of_x.astype(kind), constant.astype(kind)
    if _has_kernel(cube) and given.flags.c_contiguous:
        out = np.empty_like(cube)
        kernels.norm.combine(given, cube, out, *numbers)
    else:
        a, b, d = (n.reshape(1, -1, 1) for n in numbers)
        out = (given * a + wider * b + d).astype(cube.dtype)
    return out.reshape(ctx.shape)


def batch_statistics(x: Array) -> tuple[Array, Array]:
    """Return mean and biased variance per channel, float64; of an empty batch 0 and 1."""
    cube = _cube(x)
    xp = array_module(x)
    count = cube.shape[0] * cube.shape[2]
    if not count:
        return xp.zeros(cube.shape[1]), xp.ones(cube.shape[1])
    pivot = cube[0, :, 0].astype("float64")
    if _has_kernel(cube):
        sums, squares = np.empty(cube.shape[1]), np.empty(cube.shape[1])
        kernels.norm.channel_sums(cube, pivot, sums, squares)
    else:
        given = wide(cube)
        moved = given - pivot.astype(given.dtype).reshape(1, -1, 1)
        sums = moved.sum(axis=(0, 2), dtype="float64")
        squares = (moved * moved).sum(axis=(0, 2), dtype="float64")
    offset = sums / count
    return pivot + offset, xp.maximum(squares / count - offset * offset, 0)


def _cube(x: Array) -> Array:
    """Return x as [n, channels, area]."""
    return x.reshape(*x.shape[:2], math.prod(x.shape[2:]))


def _affine(cube: Array, scale: Array, shift: Array) -> Array:
    given = wide(cube)
    scale, shift = scale.astype(given.dtype), shift.astype(given.dtype)
    if _has_kernel(cube):
        out = np.empty_like(cube)
        kernels.norm.scale_shift(cube, out, scale, shift)
        return out
    # In float32 for half precision, where two large terms would leave nothing of a small sum.
    return (given * scale.reshape(1, -1, 1) + shift.reshape(1, -1, 1)).astype(cube.dtype)


def _grad_sums(given: Array, cube: Array, mean: Array) -> tuple[Array, Array]:
    """Return the sums of the gradient and of gradient * (x - mean) per channel."""
    if _has_kernel(cube) and given.flags.c_contiguous:
        sums, products = np.empty(cube.shape[1]), np.empty(cube.shape[1])
        kernels.norm.grad_sums(given, cube, mean, sums, products)
        return sums, products
    wider = wide(cube)
    moved = wider - mean.astype(wider.dtype).reshape(1, -1, 1)
    products = (given * moved).sum(axis=(0, 2), dtype="float64")
    return given.sum(axis=(0, 2), dtype="float64"), products


def _has_kernel(cube: Array) -> bool:
    return is_plain(cube) and bool(cube.flags.c_contiguous)


def parameter_dtype(name: str, x: Array, weight: Any, bias: Any) -> np.dtype[Any]:
    """Return the dtype of weight and bias: the input's, or float32 beside half precision.

    Raises:
        DtypeError: If they are of another one, or differ.
    """
    kind: np.dtype[Any] = x.dtype
    given = weight if weight is not None else bias
    if given is None or (given.dtype == kind and (bias is None or bias.dtype == kind)):
        return kind
    if given.dtype == "float32" and kind in (float16, bfloat16):
        kind = given.dtype
    for label, one in (("weight", weight), ("bias", bias)):
        if one is not None and one.dtype != kind:
            raise DtypeError(
                f"{name}: input is {x.dtype}, {label} is {one.dtype}; cast one of them"
            )
    return kind


class _LayerNorm(Function):
    __slots__ = ("axes", "kind")

    @staticmethod
    def forward(
        ctx: Any, x: Array, weight: Any, bias: Any, axes: tuple[int, ...], eps: float
    ) -> Array:
        ctx.kind = parameter_dtype("layer_norm", x, weight, bias)
        xp = array_module(x)
        given = wide(x)
        centred = given - given.mean(axis=axes, keepdims=True)
        invstd = 1 / xp.sqrt((centred * centred).mean(axis=axes, keepdims=True) + eps)
        centred *= invstd
        ctx.axes = axes
        ctx.save_for_backward(centred, invstd, weight)
        out = centred if weight is None else centred * weight
        out = out.copy() if bias is None else out + bias
        return out if out.dtype == x.dtype else out.astype(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        normalized, invstd, weight = ctx.saved_tensors
        batch = tuple(range(grad.ndim - len(ctx.axes)))
        dtype, grad = grad.dtype, wide(grad)
        inner = grad if weight is None else grad * weight
        grad_x = inner - inner.mean(axis=ctx.axes, keepdims=True)
        grad_x -= normalized * (inner * normalized).mean(axis=ctx.axes, keepdims=True)
        grad_x *= invstd
        need_weight, need_bias = ctx.needs_input_grad[1:3]
        of_weight = (
            total(grad * normalized, batch).astype(ctx.kind, copy=False) if need_weight else None
        )
        of_bias = total(grad, batch).astype(ctx.kind, copy=False) if need_bias else None
        return grad_x.astype(dtype, copy=False), of_weight, of_bias, None, None


def batch_norm(
    x: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float | None = 0.1,
    eps: float = 1e-5,
) -> Any:
    """Normalise each channel of x [n, channels, ...].

    Args:
        x: The input.
        running_mean: Updated in place in training, used otherwise; None uses the batch always.
        running_var: As running_mean.
        weight: Scale per channel, or None.
        bias: Shift per channel, or None.
        training: Whether to use the batch's own statistics.
        momentum: Share of a new batch in the running statistics.
        eps: Added to the variance.
    """
    if x.ndim < 2:
        raise ShapeError(f"batch_norm needs [n, channels, ...], got {tuple(x.shape)}")
    check_float("batch_norm", x.data)
    uses_batch = training or running_mean is None
    if uses_batch:
        count = x.shape[0] * math.prod(x.shape[2:])
        if count == 1:
            raise ShapeError(f"batch_norm needs more than one value per channel, got {x.shape}")
        mean, var = batch_statistics(x.data)
        if count and running_mean is not None and training and momentum is not None:
            _update_running(running_mean, mean, momentum)
            _update_running(running_var, var * (count / max(count - 1, 1)), momentum)
    else:
        mean = running_mean.data.astype("float64")
        var = running_var.data.astype("float64")
    invstd = 1 / array_module(mean).sqrt(var + eps)
    return _BatchNorm.apply(x, weight, bias, mean, invstd, uses_batch)


def _update_running(running: Any, value: Array, momentum: float) -> None:
    running.data[...] = running.data * (1 - momentum) + value * momentum
    running.version[0] += 1


def layer_norm(
    x: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    """Normalise over the last axes, whose shape is normalized_shape."""
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if tuple(x.shape[-len(shape) :]) != shape:
        raise ShapeError(f"layer_norm: input {tuple(x.shape)} does not end with {shape}")
    check_float("layer_norm", x.data)
    return _LayerNorm.apply(x, weight, bias, tuple(range(-len(shape), 0)), eps)


class _GroupNorm(Function):
    __slots__ = ("each", "groups")

    @staticmethod
    def forward(ctx: Any, x: Array, weight: Any, bias: Any, groups: int, eps: float) -> Array:
        xp = array_module(x)
        count, channels = x.shape[:2]
        ctx.groups, ctx.each = groups, x.size // max(count * groups, 1)
        # Sums of half precision are taken in float32.
        rows = (x.astype("float32") if _is_half(x) else x).reshape(count, groups, ctx.each)
        # Not mean(): it warns of rows without elements.
        share = rows.dtype.type(1 / max(ctx.each, 1))
        normalized = rows - rows.sum(axis=2, keepdims=True) * share
        invstd = 1 / xp.sqrt((normalized * normalized).sum(axis=2, keepdims=True) * share + eps)
        normalized *= invstd
        ctx.save_for_backward(normalized, invstd, weight)
        out = normalized.reshape(count, channels, x.size // max(count * channels, 1))
        if weight is not None:
            out = out * weight.reshape(1, -1, 1)
        if bias is not None:
            out = out + bias.reshape(1, -1, 1)
        return out.reshape(x.shape).astype(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        normalized, invstd, weight = ctx.saved_tensors
        count, channels = grad.shape[:2]
        given = grad.reshape(count, channels, grad.size // max(count * channels, 1))
        given = given.astype(normalized.dtype, copy=False)
        grad_x = None
        if ctx.needs_input_grad[0]:
            inner = given if weight is None else given * weight.reshape(1, -1, 1)
            inner = inner.reshape(normalized.shape)
            share = normalized.dtype.type(1 / max(ctx.each, 1))
            grad_x = inner - inner.sum(axis=2, keepdims=True) * share
            grad_x -= normalized * ((inner * normalized).sum(axis=2, keepdims=True) * share)
            grad_x *= invstd
            grad_x = grad_x.reshape(grad.shape).astype(grad.dtype)
        along = normalized.reshape(given.shape)
        need_weight, need_bias = ctx.needs_input_grad[1:3]
        return (
            grad_x,
            (given * along).sum(axis=(0, 2)).astype(grad.dtype) if need_weight else None,
            given.sum(axis=(0, 2)).astype(grad.dtype) if need_bias else None,
            None,
            None,
        )


def group_norm(
    x: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    """Normalise groups of channels within each sample.

    Args:
        x: [n, channels, ...].
        num_groups: Groups, all of the same number of channels.
        weight: Scale per channel, or None.
        bias: Shift per channel, or None.
        eps: Added to the variance.

    Raises:
        ShapeError: If shapes do not fit, or there is one value in all to a group.
        DtypeError: If weight or bias has another dtype than x.
    """
    shape = tuple(x.shape)
    if len(shape) < 2:
        raise ShapeError(f"group_norm needs [n, channels, ...], got {shape}")
    check_float("group_norm", x.data)
    if num_groups < 1 or shape[1] % num_groups:
        raise ShapeError(f"group_norm: {shape[1]} channels cannot be in {num_groups} groups")
    if math.prod(shape) == num_groups:
        raise ShapeError(f"group_norm needs more than one value per group, got {shape}")
    for name, given in (("weight", weight), ("bias", bias)):
        if given is None:
            continue
        if tuple(given.shape) != shape[1:2]:
            raise ShapeError(f"group_norm: {name} {tuple(given.shape)} does not fit input {shape}")
        if given.dtype != x.dtype:
            raise DtypeError(
                f"group_norm: input is {x.dtype}, {name} is {given.dtype}; cast one of them"
            )
    return _GroupNorm.apply(x, weight, bias, num_groups, eps)


def _is_half(x: Array) -> bool:
    return x.dtype in (float16, bfloat16)

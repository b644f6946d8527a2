"""Batch and layer normalisation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradmesh.engine import kernels
from gradmesh.engine.autograd.function import Function
from gradmesh.engine.backend import Array, ShapeError, array_module, is_plain


class _BatchNorm(Function):
    """Normalise each channel; with given statistics it is a fixed affine map."""

    __slots__ = ("count", "shape", "uses_batch")

    @staticmethod
    def forward(
        ctx: Any, x: Array, weight: Any, bias: Any, mean: Array, invstd: Array, uses_batch: bool
    ) -> Array:
        ctx.shape, ctx.uses_batch = x.shape, uses_batch
        cube = x.reshape(x.shape[0], x.shape[1], -1)
        ctx.count = x.shape[0] * cube.shape[2]
        scale = invstd if weight is None else weight * invstd
        shift = -mean * scale if bias is None else bias - mean * scale
        ctx.save_for_backward(x, weight, mean, invstd)
        return _affine(cube, scale.astype(x.dtype), shift.astype(x.dtype)).reshape(x.shape)

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        x, weight, mean, invstd = ctx.saved_tensors
        cube = x.reshape(x.shape[0], x.shape[1], -1)
        given = grad.reshape(cube.shape)
        sums, products = _grad_sums(given, cube)
        # Sum over grad * normalised x, from the sums over grad and grad * x.
        lined = (products - mean * sums) * invstd
        scale = invstd if weight is None else weight * invstd
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = _grad_input(ctx, given, cube, (scale, mean, invstd, sums, lined))
        return (
            grad_x,
            lined.astype(grad.dtype) if ctx.needs_input_grad[1] else None,
            sums.astype(grad.dtype) if ctx.needs_input_grad[2] else None,
            None,
            None,
            None,
        )


def _grad_input(ctx: Any, given: Array, cube: Array, stats: tuple[Array, ...]) -> Array:
    scale, mean, invstd, sums, lined = stats
    xp = array_module(cube)
    if ctx.uses_batch:
        of_x = -scale * invstd * lined / ctx.count
        constant = -scale * sums / ctx.count - of_x * mean
    else:
        of_x = constant = xp.zeros_like(scale)
    kind = cube.dtype
    numbers = scale.astype(kind), of_x.astype(kind), constant.astype(kind)
    if _has_kernel(cube) and given.flags.c_contiguous:
        out = np.empty_like(cube)
        kernels.norm.combine(given, cube, out, *numbers)
    else:
        a, b, d = (n.reshape(1, -1, 1) for n in numbers)
        out = given * a + cube * b + d
    return out.reshape(ctx.shape)


def batch_statistics(x: Array) -> tuple[Array, Array]:
    """Return mean and biased variance per channel, float64."""
    cube = x.reshape(x.shape[0], x.shape[1], -1)
    count = cube.shape[0] * cube.shape[2]
    if _has_kernel(cube):
        sums, squares = np.empty(cube.shape[1]), np.empty(cube.shape[1])
        kernels.norm.channel_sums(cube, sums, squares)
    else:
        sums = cube.sum(axis=(0, 2), dtype="float64")
        squares = (cube * cube).sum(axis=(0, 2), dtype="float64")
    mean = sums / count
    return mean, array_module(x).maximum(squares / count - mean * mean, 0)


def _affine(cube: Array, scale: Array, shift: Array) -> Array:
    if _has_kernel(cube):
        out = np.empty_like(cube)
        kernels.norm.scale_shift(cube, out, scale, shift)
        return out
    return cube * scale.reshape(1, -1, 1) + shift.reshape(1, -1, 1)


def _grad_sums(given: Array, cube: Array) -> tuple[Array, Array]:
    if _has_kernel(cube) and given.flags.c_contiguous:
        sums, products = np.empty(cube.shape[1]), np.empty(cube.shape[1])
        kernels.norm.grad_sums(given, cube, sums, products)
        return sums, products
    products = (given * cube).sum(axis=(0, 2), dtype="float64")
    return given.sum(axis=(0, 2), dtype="float64"), products


def _has_kernel(cube: Array) -> bool:
    return is_plain(cube) and bool(cube.flags.c_contiguous)


class _LayerNorm(Function):
    __slots__ = ("axes",)

    @staticmethod
    def forward(
        ctx: Any, x: Array, weight: Any, bias: Any, axes: tuple[int, ...], eps: float
    ) -> Array:
        xp = array_module(x)
        centred = x - x.mean(axis=axes, keepdims=True)
        invstd = 1 / xp.sqrt((centred * centred).mean(axis=axes, keepdims=True) + eps)
        centred *= invstd
        ctx.axes = axes
        ctx.save_for_backward(centred, invstd, weight)
        out = centred if weight is None else centred * weight
        return out.copy() if bias is None else out + bias

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        lined, invstd, weight = ctx.saved_tensors
        batch = tuple(range(grad.ndim - len(ctx.axes)))
        inner = grad if weight is None else grad * weight
        grad_x = inner - inner.mean(axis=ctx.axes, keepdims=True)
        grad_x -= lined * (inner * lined).mean(axis=ctx.axes, keepdims=True)
        grad_x *= invstd
        return (
            grad_x,
            (grad * lined).sum(axis=batch) if ctx.needs_input_grad[1] else None,
            grad.sum(axis=batch) if ctx.needs_input_grad[2] else None,
            None,
            None,
        )


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
    uses_batch = training or running_mean is None
    if uses_batch:
        count = math.prod(x.shape) // max(x.shape[1], 1)
        if count < 2 and training:
            raise ShapeError(f"batch_norm needs more than one value per channel, got {x.shape}")
        mean, var = batch_statistics(x.data)
        if running_mean is not None and training and momentum is not None:
            _follow(running_mean, mean, momentum)
            _follow(running_var, var * (count / max(count - 1, 1)), momentum)
    else:
        mean = running_mean.data.astype("float64")
        var = running_var.data.astype("float64")
    invstd = 1 / array_module(mean).sqrt(var + eps)
    return _BatchNorm.apply(x, weight, bias, mean, invstd, uses_batch)


def _follow(running: Any, value: Array, momentum: float) -> None:
    running.data[...] = running.data * (1 - momentum) + value * momentum
    running.version[0] += 1


def layer_norm(
    x: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    """Normalise over the last axes, whose shape is normalized_shape."""
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if tuple(x.shape[-len(shape) :]) != shape:
        raise ShapeError(f"layer_norm: input {tuple(x.shape)} does not end with {shape}")
    return _LayerNorm.apply(x, weight, bias, tuple(range(-len(shape), 0)), eps)

"""Group normalisation."""

from __future__ import annotations

import math
from typing import Any

from gradmesh.engine.autograd.function import Function
from gradmesh.engine.autograd.ops.floats import check_float
from gradmesh.engine.backend import Array, DtypeError, ShapeError, array_module
from gradmesh.engine.backend.dtype import bfloat16, float16


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
        lined = rows - rows.sum(axis=2, keepdims=True) * share
        invstd = 1 / xp.sqrt((lined * lined).sum(axis=2, keepdims=True) * share + eps)
        lined *= invstd
        ctx.save_for_backward(lined, invstd, weight)
        out = lined.reshape(count, channels, x.size // max(count * channels, 1))
        if weight is not None:
            out = out * weight.reshape(1, -1, 1)
        if bias is not None:
            out = out + bias.reshape(1, -1, 1)
        return out.reshape(x.shape).astype(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        lined, invstd, weight = ctx.saved_tensors
        count, channels = grad.shape[:2]
        given = grad.reshape(count, channels, grad.size // max(count * channels, 1))
        given = given.astype(lined.dtype, copy=False)
        grad_x = None
        if ctx.needs_input_grad[0]:
            inner = given if weight is None else given * weight.reshape(1, -1, 1)
            inner = inner.reshape(lined.shape)
            share = lined.dtype.type(1 / max(ctx.each, 1))
            grad_x = inner - inner.sum(axis=2, keepdims=True) * share
            grad_x -= lined * ((inner * lined).sum(axis=2, keepdims=True) * share)
            grad_x *= invstd
            grad_x = grad_x.reshape(grad.shape).astype(grad.dtype)
        along = lined.reshape(given.shape)
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
    """Normalise groups of channels, each sample for itself.

    Args:
        x: [n, channels, ...].
        num_groups: Groups, each of as many channels.
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

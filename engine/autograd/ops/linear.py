"""The affine map of a layer, with or without ReLU, fused so that outputs are passed over once."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmesh.engine import kernels
from gradmesh.engine.autograd.function import Function
from gradmesh.engine.backend import Array, DtypeError, ShapeError, array_module
from gradmesh.engine.backend.blas import matmul


class _Linear(Function):
    """Compute x Wᵀ + b, then ReLU if asked."""

    __slots__ = ("has_relu",)

    @staticmethod
    def forward(ctx: Any, x: Array, weight: Array, bias: Array | None, has_relu: bool) -> Array:
        _check(x, weight, bias)
        xp = array_module(x)
        out = matmul(x, weight.T)
        _add_bias(xp, out, bias, has_relu)
        ctx.has_relu = has_relu
        ctx.save_for_backward(x, weight, out if has_relu else None)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        x, weight, out = ctx.saved_tensors
        xp = array_module(grad)
        need_x, need_weight, need_bias, _ = ctx.needs_input_grad
        flat = grad if grad.ndim == 2 else grad.reshape(-1, weight.shape[0])
        flat, grad_bias = _through_bias(xp, flat, out, need_bias)
        grad_x = grad_weight = None
        if need_x:
            grad_x = matmul(flat, weight)
            if x.ndim != 2:
                grad_x = grad_x.reshape(x.shape)
        if need_weight:
            inputs = x if x.ndim == 2 else x.reshape(-1, weight.shape[1])
            grad_weight = matmul(flat.T, inputs)
        return grad_x, grad_weight, grad_bias, None


def _add_bias(xp: Any, out: Array, bias: Array | None, has_relu: bool) -> None:
    """Add the bias and take max(x, 0) in place, in one pass where there is a kernel."""
    if bias is not None and _has_kernel(out) and bias.flags.c_contiguous:
        kernels.fused.bias_add(out if out.ndim == 2 else out.reshape(-1, len(bias)), bias, has_relu)
        return
    if bias is not None:
        out += bias
    if has_relu:
        xp.maximum(out, out.dtype.type(0), out=out)


def _through_bias(xp: Any, grad: Array, out: Array | None, need_bias: bool) -> tuple[Array, Any]:
    """Return the gradient before ReLU, [n, dim], and its sum over the rows."""
    if out is None:
        return grad, xp.add.reduce(grad, axis=0) if need_bias else None
    if out.ndim != 2:
        out = out.reshape(grad.shape)
    if _has_kernel(grad) and grad.flags.c_contiguous:
        masked = xp.empty_like(grad)
        total = xp.empty(grad.shape[1], dtype=grad.dtype)
        kernels.fused.relu_backward(grad, out, masked, total)
        return masked, total if need_bias else None
    grad = grad * (out > 0)
    return grad, xp.add.reduce(grad, axis=0) if need_bias else None


def _has_kernel(array: Array) -> bool:
    return isinstance(array, np.ndarray) and array.dtype.char in "fd"


def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """Return x Wᵀ + b.

    Args:
        x: [..., in_features].
        weight: [out_features, in_features].
        bias: [out_features], or None.
    """
    return _Linear.apply(x, weight, bias, False)


def linear_relu(x: Any, weight: Any, bias: Any = None) -> Any:
    """Return max(x Wᵀ + b, 0), as one op."""
    return _Linear.apply(x, weight, bias, True)


def _check(x: Array, weight: Array, bias: Array | None) -> None:
    shape = weight.shape
    if x.ndim == 0 or x.shape[-1] != shape[1]:
        raise ShapeError(f"linear: input {x.shape} does not fit weight {shape}")
    if x.dtype != weight.dtype:
        raise DtypeError(f"linear: input is {x.dtype}, weight is {weight.dtype}; cast one of them")
    if bias is not None and bias.shape != shape[:1]:
        raise ShapeError(f"linear: bias {bias.shape} does not fit weight {shape}")

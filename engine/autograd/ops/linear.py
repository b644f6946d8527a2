"""Matrix products, and the affine map of a layer fused with ReLU to pass over outputs once."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradmesh.engine import kernels
from gradmesh.engine.autograd.function import Function
from gradmesh.engine.autograd.ops.broadcast import unbroadcast
from gradmesh.engine.autograd.ops.floats import total
from gradmesh.engine.backend import Array, DtypeError, ShapeError, array_module, is_plain
from gradmesh.engine.backend.blas import matmul as multiply


class _Matmul(Function):
    __slots__ = ()

    @staticmethod
    def forward(ctx: Any, a: Array, b: Array) -> Array:
        if a.ndim == 0 or b.ndim == 0 or a.shape[-1] != b.shape[-2 if b.ndim > 1 else 0]:
            raise ShapeError(f"matmul: shapes {a.shape} and {b.shape} do not fit")
        if a.dtype != b.dtype:
            raise DtypeError(f"matmul: dtypes {a.dtype} and {b.dtype} differ; cast one of them")
        ctx.save_for_backward(a, b)
        return multiply(a, b)

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        a, b = ctx.saved_tensors
        xp = array_module(grad)
        # Treat vectors as matrices.
        left = a[None, :] if a.ndim == 1 else a
        right = b[:, None] if b.ndim == 1 else b
        full = grad
        if b.ndim == 1:
            full = full[..., None]
        if a.ndim == 1:
            full = xp.expand_dims(full, -2)
        need_a, need_b = ctx.needs_input_grad
        grad_a = grad_b = None
        if need_a:
            found = multiply(full, xp.swapaxes(right, -1, -2))
            grad_a = unbroadcast(found, (left.shape, a.dtype)).reshape(a.shape)
        if need_b:
            found = multiply(xp.swapaxes(left, -1, -2), full)
            grad_b = unbroadcast(found, (right.shape, b.dtype)).reshape(b.shape)
        return grad_a, grad_b


class _Linear(Function):
    """Compute x Wᵀ + b."""

    __slots__ = ()

    @staticmethod
    def forward(ctx: Any, x: Array, weight: Array, bias: Array | None) -> Array:
        out = _affine(x, weight, bias, False)
        ctx.save_for_backward(x, weight)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        x, weight = ctx.saved_tensors
        flat = grad if grad.ndim == 2 else _rows(grad)
        grad_bias = None if ctx.edges[2] is None else _column_sum(flat)
        return *_products(ctx.edges, flat, x, weight), grad_bias


class _LinearRelu(Function):
    """Compute max(x Wᵀ + b, 0)."""

    __slots__ = ()

    @staticmethod
    def forward(ctx: Any, x: Array, weight: Array, bias: Array | None) -> Array:
        out = _affine(x, weight, bias, True)
        ctx.save_for_backward(x, weight, out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        x, weight, out = ctx.saved_tensors
        flat = grad if grad.ndim == 2 else _rows(grad)
        flat, grad_bias = _through_relu(flat, out if out.ndim == 2 else _rows(out))
        return *_products(ctx.edges, flat, x, weight), grad_bias


def _affine(x: Array, weight: Array, bias: Array | None, has_relu: bool) -> Array:
    _check(x, weight, bias)
    if x.ndim != 2:
        # One matrix product; a stack may have strides that allow no view as rows.
        out = _affine(_rows(x), weight, bias, has_relu)
        return out.reshape(*x.shape[:-1], weight.shape[0])
    out = multiply(x, weight.T)
    if bias is not None and is_plain(out) and bias.flags.c_contiguous:
        kernels.fused.bias_add(out, bias, has_relu)
        return out
    if bias is not None:
        out += bias
    if has_relu:
        array_module(out).maximum(out, out.dtype.type(0), out=out)
    return out


def _rows(x: Array) -> Array:
    """Return [..., dim] as a matrix [n, dim], for reading; callers skip it for matrices."""
    # Counted, because numpy cannot infer the number of rows of no columns.
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _products(edges: Any, grad: Array, x: Array, weight: Array) -> tuple[Any, Any]:
    """Return the gradients of x and of the weight, from that of the result, [n, out]."""
    grad_x = grad_weight = None
    if edges[0] is not None:
        grad_x = multiply(grad, weight)
        if x.ndim != 2:
            grad_x = grad_x.reshape(x.shape)
    if edges[1] is not None:
        grad_weight = multiply(grad.T, x if x.ndim == 2 else _rows(x))
    return grad_x, grad_weight


def _column_sum(grad: Array) -> Array:
    """Return the sum over the rows of [n, dim]."""
    if not is_plain(grad) or not grad.flags.c_contiguous:
        return total(grad, 0)
    sums = np.empty(grad.shape[1], dtype=grad.dtype)
    kernels.fused.column_sum(grad, sums)
    return sums


def _through_relu(grad: Array, out: Array) -> tuple[Array, Array]:
    """Return the gradient before ReLU, [n, dim], and its sum over the rows."""
    if is_plain(grad) and grad.flags.c_contiguous:
        masked = np.empty(grad.shape, dtype=grad.dtype)
        sums = np.empty(grad.shape[1], dtype=grad.dtype)
        kernels.fused.relu_backward(grad, out, masked, sums)
        return masked, sums
    masked = array_module(grad).where(out <= 0, grad.dtype.type(0), grad)
    return masked, total(masked, 0)


def matmul(a: Any, b: Any) -> Any:
    """Return the matrix product, batched over leading axes as numpy's matmul."""
    return _Matmul.apply(a, b)


def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """Return x Wᵀ + b.

    Args:
        x: [..., in_features].
        weight: [out_features, in_features].
        bias: [out_features], or None.
    """
    return _Linear.apply(x, weight, bias)


def linear_relu(x: Any, weight: Any, bias: Any = None) -> Any:
    """Return max(x Wᵀ + b, 0), as one op."""
    return _LinearRelu.apply(x, weight, bias)


def _check(x: Array, weight: Array, bias: Array | None) -> None:
    shape = weight.shape
    if x.ndim == 0 or x.shape[-1] != shape[1]:
        raise ShapeError(f"linear: input {x.shape} does not fit weight {shape}")
    if x.dtype != weight.dtype:
        raise DtypeError(f"linear: input is {x.dtype}, weight is {weight.dtype}; cast one of them")
    if bias is None:
        return
    if bias.shape != shape[:1]:
        raise ShapeError(f"linear: bias {bias.shape} does not fit weight {shape}")
    if bias.dtype != weight.dtype:
        raise DtypeError(f"linear: input is {x.dtype}, bias is {bias.dtype}; cast one of them")

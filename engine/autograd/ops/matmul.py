"""Matrix products."""

from __future__ import annotations

from typing import Any

from gradmesh.engine.autograd.function import Function
from gradmesh.engine.autograd.ops.broadcast import unbroadcast
from gradmesh.engine.backend import Array, DtypeError, ShapeError, array_module
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
        # Vectors become matrices for the time of the computation.
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


def matmul(a: Any, b: Any) -> Any:
    """Return the matrix product, batched over leading axes as numpy's matmul."""
    return _Matmul.apply(a, b)

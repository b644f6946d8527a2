"""Lookups of rows, whose gradients are sums of rows."""

from __future__ import annotations

from typing import Any

from gradmesh.engine.autograd.function import Function
from gradmesh.engine.autograd.ops.rows import scatter_add
from gradmesh.engine.backend import Array, array_module


class _TakeRows(Function):
    __slots__ = ("shape",)

    @staticmethod
    def forward(ctx: Any, rows: Array, index: Array) -> Array:
        ctx.shape = rows.shape
        ctx.save_for_backward(index)
        return rows.take(index, axis=0)

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        (index,) = ctx.saved_tensors
        out = array_module(grad).zeros(ctx.shape, dtype=grad.dtype)
        scatter_add(out, index.reshape(-1), grad.reshape(-1, ctx.shape[1]))
        return out, None


def take_rows(rows: Any, index: Any) -> Any:
    """Return rows[index]; the gradient of a repeated row is summed in order of appearance.

    Args:
        rows: [m, dim], for instance the distinct rows that a parameter server sent.
        index: Integer tensor or array [...], each in [0, m), for instance the inverse of a dedupe.

    Returns:
        [..., dim].
    """
    return _TakeRows.apply(rows, index)

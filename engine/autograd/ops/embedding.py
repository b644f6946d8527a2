"""Lookups of rows, whose gradients are sums of rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradmesh.engine import kernels
from gradmesh.engine.autograd.function import Function
from gradmesh.engine.autograd.ops.given import ids_of
from gradmesh.engine.autograd.ops.rows import scatter_add
from gradmesh.engine.autograd.row_grad import RowGrad
from gradmesh.engine.backend import Array, DtypeError, ShapeError, array_module


class _TakeRows(Function):
    __slots__ = ("padding", "shape", "sparse")

    @staticmethod
    def forward(
        ctx: Any, rows: Array, index: Array, padding: int, sparse: bool, taken: Array | None
    ) -> Array:
        if index.dtype.kind not in "iu":
            raise DtypeError(f"take_rows: an index is of integers, not {index.dtype}")
        ctx.shape, ctx.padding, ctx.sparse = rows.shape, padding, sparse
        ctx.save_for_backward(index)
        if taken is not None:
            return taken
        if isinstance(rows, np.ndarray):
            picked = kernels.gather(rows, index.reshape(-1))
        else:
            picked = rows[index.reshape(-1)]
        return picked.reshape(*index.shape, *rows.shape[1:])

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        (index,) = ctx.saved_tensors
        # Named, because numpy cannot infer a width from nothing when a batch is empty.
        width = math.prod(ctx.shape[1:])
        flat, rows = index.reshape(-1), grad.reshape(index.size, width)
        if ctx.padding >= 0:
            kept = flat != ctx.padding
            flat, rows = flat[kept], rows[kept]
        if ctx.sparse:
            return RowGrad(flat, rows, ctx.shape[0]), None, None, None, None
        out = array_module(grad).zeros((ctx.shape[0], width), dtype=grad.dtype)
        scatter_add(out, flat, rows)
        return out.reshape(ctx.shape), None, None, None, None


def take_rows(rows: Any, index: Any, taken: Array | None = None) -> Any:
    """Return rows[index]; the gradient of a repeated row is summed in order of appearance.

    Args:
        rows: [m, dim], for instance the distinct rows that a parameter server sent.
        index: Integer tensor or array [...], each in [0, m), for instance the inverse of a dedupe.
        taken: rows[index], where somebody has computed it already; only recorded then.

    Returns:
        [..., dim].

    Raises:
        IndexError: If an index lies outside the rows.
        ShapeError: What was taken has another shape.
    """
    if taken is not None and taken.shape != (*index.shape, *rows.shape[1:]):
        raise ShapeError(f"take_rows: {taken.shape} taken by {index.shape} from {rows.shape}")
    return _TakeRows.apply(rows, index, -1, False, taken)


def embedding(input: Any, weight: Any, padding_idx: int | None = None, sparse: bool = False) -> Any:
    """Look up rows of a table by id.

    Args:
        input: Integers [...], as a tensor, array or list.
        weight: The table, [rows, dim].
        padding_idx: A row that gets no gradient.
        sparse: Give the table a RowGrad instead of a dense gradient.

    Returns:
        [..., dim].
    """
    padding = -1 if padding_idx is None else padding_idx % weight.shape[0]
    if not hasattr(input, "requires_grad"):
        input = ids_of("embedding: ids", input, weight)
    return _TakeRows.apply(weight, input, padding, sparse, None)

"""Lookups of rows by id, alone or pooled by bag."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradmesh.engine import kernels
from gradmesh.engine.autograd.function import Function
from gradmesh.engine.autograd.ops.arguments import factors_of, ids_of
from gradmesh.engine.autograd.ops.floats import wide
from gradmesh.engine.autograd.ops.rows import bag_pool, scatter_add
from gradmesh.engine.autograd.row_grad import RowGrad
from gradmesh.engine.backend import Array, DtypeError, ShapeError, array_module, is_plain


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
        taken: rows[index] if the caller has computed it already; the op is then only recorded.

    Returns:
        [..., dim].

    Raises:
        IndexError: If an index lies outside the rows.
        ShapeError: If `taken` has another shape.
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


class _Bag(Function):
    __slots__ = ("count", "mode", "padding", "shape", "sparse")

    @staticmethod
    def forward(
        ctx: Any,
        weight: Array,
        scales: Array | None,
        given: Array,
        starts: Array,
        mode: str,
        padding: int,
        sparse: bool,
    ) -> Array:
        ids = array_module(given).ascontiguousarray(given.reshape(-1), dtype="int64")
        ctx.shape, ctx.mode, ctx.padding, ctx.sparse = weight.shape, mode, padding, sparse
        factors = _factors(weight, scales, ids, starts, mode, padding)
        winner = None
        if not is_plain(weight):
            out, winner = bag_pool(weight, ids, starts, factors, mode, padding)
        elif mode == "max":
            out, winner = kernels.bag_max(weight, ids, starts, padding)
        else:
            out = kernels.bag_sum(weight, ids, starts, factors)
        table = weight if ctx.needs_input_grad[1] else None
        # The caller's own array, if `ids` is a view of it, so that a change of it is detected.
        is_view = given.dtype == ids.dtype and given.flags.c_contiguous
        ctx.save_for_backward(given if is_view else ids, starts, factors, winner, table)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Array) -> Any:
        ids, starts, factors, winner, table = ctx.saved_tensors
        ids = ids.reshape(-1)
        if is_plain(grad) and not (ctx.sparse and table is None):
            # Kernels do not check them, and the caller may have reused the memory of an array.
            kernels.check_index(ids, ctx.shape[0])
        grad_weight = grad_scales = None
        if ctx.needs_input_grad[0]:
            if not ctx.sparse and is_plain(grad):
                grad_weight = _dense_grad(ctx.shape[0], grad, ids, starts, factors, winner)
                if ctx.padding >= 0:
                    grad_weight[ctx.padding] = 0
            else:
                found = _row_grad(ctx.shape[0], grad, ids, starts, factors, winner)
                if ctx.padding >= 0:
                    kept = found.ids != ctx.padding
                    found = RowGrad(found.ids[kept], found.rows[kept], ctx.shape[0], coalesced=True)
                grad_weight = found if ctx.sparse else found.to_dense()
        if ctx.needs_input_grad[1]:
            grad_scales = _scales_grad(table, ids, grad, starts)
            if ctx.padding >= 0:
                grad_scales[ids == ctx.padding] = 0
        return grad_weight, grad_scales, None, None, None, None, None


def _factors(
    weight: Array, scales: Any, ids: Array, starts: Array, mode: str, padding: int
) -> Array | None:
    """Return the factor of each looked-up row, None if all are 1."""
    xp = array_module(weight)
    if mode == "max":
        return None
    kept = None if padding < 0 else (ids != padding).astype(weight.dtype)
    if mode == "sum":
        if scales is None:
            return kept
        return xp.ascontiguousarray(scales) if kept is None else scales * kept
    lengths = starts[1:] - starts[:-1]
    bags = xp.repeat(xp.arange(len(lengths)), lengths.tolist())
    if kept is not None:
        lengths = xp.bincount(bags, weights=kept, minlength=len(lengths))
    each = (1 / xp.maximum(lengths, 1)).astype(weight.dtype)[bags]
    return each if kept is None else each * kept


def _dense_grad(
    num_rows: int, grad: Array, ids: Array, starts: Array, factors: Any, winner: Any
) -> Array:
    """Return the gradient of the whole table; a row's parts are summed in order of appearance."""
    given = np.ascontiguousarray(grad)
    dense: Array
    if winner is not None:
        dense = kernels.bag_max_backward(ids, num_rows, given, winner)
    else:
        dense = kernels.bag_sum_backward(ids, num_rows, given, starts, factors)
    return dense


def _row_grad(
    num_rows: int, grad: Array, ids: Array, starts: Array, factors: Any, winner: Any
) -> RowGrad:
    if not is_plain(grad):
        return _row_grad_by_id(num_rows, grad, ids, starts, factors, winner)
    unique, inverse = kernels.unique_inverse(ids)
    given = np.ascontiguousarray(grad)
    if winner is not None:
        rows = kernels.bag_max_backward(inverse, len(unique), given, winner)
    else:
        rows = kernels.bag_sum_backward(inverse, len(unique), given, starts, factors)
    return RowGrad(unique, rows, num_rows, coalesced=True)


def _row_grad_by_id(
    num_rows: int, grad: Array, ids: Array, starts: Array, factors: Any, winner: Any
) -> RowGrad:
    xp = array_module(grad)
    lengths = (starts[1:] - starts[:-1]).tolist()
    bags = xp.repeat(xp.arange(len(lengths)), lengths)
    if winner is not None:
        mine = winner[bags] == xp.arange(len(ids))[:, None]
        rows = xp.where(mine, grad[bags], grad.dtype.type(0))
    else:
        rows = grad[bags] if factors is None else grad[bags] * factors[:, None]
    return RowGrad(ids, rows, num_rows).coalesce()


def _scales_grad(table: Array, ids: Array, grad: Array, starts: Array) -> Array:
    if is_plain(grad):
        return kernels.bag_weights_backward(table, ids, np.ascontiguousarray(grad), starts)
    xp = array_module(grad)
    bags = xp.repeat(xp.arange(len(starts) - 1), (starts[1:] - starts[:-1]).tolist())
    products = wide(table[ids]) * grad[bags]
    return products.sum(axis=1).astype(grad.dtype, copy=False)


def check_mode(mode: str) -> None:
    """Raise if the mode of pooling is unknown.

    Raises:
        ValueError: If it is not "sum", "mean" or "max".
    """
    if mode not in ("sum", "mean", "max"):
        raise ValueError(f"embedding bag: mode is {mode!r}; use 'sum', 'mean' or 'max'")


def embedding_bag(
    input: Any,
    weight: Any,
    offsets: Any = None,
    *,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Any:
    """Look up rows and pool them by bag.

    Args:
        input: Integers, as a tensor, array or list: [bags, length], or [n] with offsets.
        weight: The table, [rows, dim].
        offsets: Where each bag begins among the ids, [bags].
        mode: `"sum"`, `"mean"` or `"max"`.
        sparse: Give the table a RowGrad instead of a dense gradient.
        per_sample_weights: A factor per id, for mode "sum" only.
        include_last_offset: Whether offsets end with the number of ids.
        padding_idx: Ids of this row are left out, and the row gets no gradient.

    Returns:
        [bags, dim].
    """
    check_mode(mode)
    if per_sample_weights is not None and mode != "sum":
        raise ValueError(f"per_sample_weights need mode 'sum', not {mode!r}")
    ids = ids_of("embedding_bag: ids", input, weight)
    is_tensor = hasattr(input, "requires_grad")
    if offsets is not None:
        offsets = ids_of("embedding_bag: offsets", offsets, weight)
    starts = _starts(ids, offsets, include_last_offset)
    if per_sample_weights is not None:
        per_sample_weights = factors_of(per_sample_weights, weight)
        if tuple(per_sample_weights.shape) != tuple(ids.shape):
            raise ShapeError(
                f"per_sample_weights {tuple(per_sample_weights.shape)} for ids {tuple(ids.shape)}"
            )
        per_sample_weights = per_sample_weights.reshape(-1)
    padding = -1 if padding_idx is None else padding_idx % weight.shape[0]
    given = input if is_tensor else ids
    return _Bag.apply(weight, per_sample_weights, given, starts, mode, padding, sparse)


def _starts(ids: Array, offsets: Any, include_last: bool) -> Array:
    xp = array_module(ids)
    if ids.ndim == 2:
        if offsets is not None:
            raise ShapeError("embedding_bag: offsets go with ids of one axis, these have two")
        return xp.arange(ids.shape[0] + 1, dtype="int64") * ids.shape[1]
    if ids.ndim != 1 or offsets is None:
        raise ShapeError(f"embedding_bag: ids {tuple(ids.shape)} need two axes, or offsets")
    starts = offsets.astype("int64")
    if not include_last:
        starts = xp.concatenate([starts, xp.asarray([len(ids)], dtype="int64")])
    if len(starts) < 1 or int(starts[0]) != 0 or bool((starts[1:] < starts[:-1]).any()):
        raise ShapeError("embedding_bag: offsets begin with 0 and never fall")
    if int(starts[-1]) > len(ids):
        raise ShapeError(f"embedding_bag: offsets reach {int(starts[-1])} of {len(ids)} ids")
    return starts

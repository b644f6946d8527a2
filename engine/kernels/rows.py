"""Gathering rows and summing rows by index, in order of appearance."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmesh.engine.backend import is_plain
from gradmesh.engine.kernels.compile import jit


@jit
def _first_outside(index: Any, limit: Any) -> Any:
    for i in range(index.shape[0]):
        if index[i] < 0 or index[i] >= limit:
            return i
    return -1


@jit
def _scatter_add(out: Any, index: Any, rows: Any) -> None:
    for i in range(index.shape[0]):
        target = out[index[i]]
        row = rows[i]
        for j in range(target.shape[0]):
            target[j] += row[j]


@jit
def _scatter_sub_scaled(out: Any, index: Any, rows: Any, scale: Any) -> None:
    for i in range(index.shape[0]):
        target = out[index[i]]
        row = rows[i]
        for j in range(target.shape[0]):
            target[j] -= scale * row[j]


@jit
def _copy_out(table: Any, index: Any, out: Any) -> None:
    for i in range(index.shape[0]):
        if index[i] >= 0:
            row = table[index[i]]
            for j in range(row.shape[0]):
                out[i, j] = row[j]


@jit
def _copy_in(table: Any, index: Any, rows: Any) -> None:
    for i in range(index.shape[0]):
        target = table[index[i]]
        for j in range(target.shape[0]):
            target[j] = rows[i, j]


@jit
def _copy_marked(table: Any, index: Any, marks: Any, out: Any) -> None:
    for i in range(index.shape[0]):
        if marks[index[i]]:
            row = table[index[i]]
            for j in range(row.shape[0]):
                out[i, j] = row[j]


def _bits(array: Any) -> Any:
    """See 16-bit elements as integers, which numba can copy."""
    return array.view(np.uint16) if array.dtype.itemsize == 2 else array


def copy_out(table: Any, index: Any, out: Any) -> None:
    """Put table[index] into out; rows of out whose index is below 0 stay as they are."""
    _copy_out(_bits(table), index, _bits(out))


def copy_marked(table: Any, index: Any, marks: Any, out: Any) -> None:
    """Put table[index] into out where a row of the table is marked; the rest stays as it is.

    Args:
        table: [m, dim].
        index: int64 [n], each in [0, m).
        marks: bool [m].
        out: [n, dim] of the table's dtype.
    """
    _copy_marked(_bits(table), index, marks, _bits(out))


def copy_in(table: Any, index: Any, rows: Any) -> None:
    """Put rows of the table's dtype into table[index], one after the other."""
    _copy_in(_bits(table), index, _bits(rows))


def check_index(index: Any, limit: int) -> None:
    """Raise IndexError if an index lies outside [0, limit)."""
    place = _first_outside(index, limit)
    if place >= 0:
        raise IndexError(f"index {int(index[place])} at place {place} is outside {limit} rows")


def gather(table: Any, index: Any, out: Any = None) -> Any:
    """Return table[index], into `out` if given.

    Args:
        table: [m, dim].
        index: int64 [n], each in [0, m).
        out: [n, dim] of the table's dtype, or None.

    Raises:
        IndexError: If an index lies outside the table.
    """
    check_index(index, table.shape[0])
    # mode="clip" skips the buffering that numpy's own bounds check needs.
    return np.take(table, index, axis=0, out=out, mode="clip")


def scatter_add(out: Any, index: Any, rows: Any) -> None:
    """Add rows to out[index], one after the other, so repeated places add up in order."""
    if len(index) != len(rows):
        raise IndexError(f"{len(index)} places for {len(rows)} rows")
    check_index(index, out.shape[0])
    if not is_plain(rows) and rows.dtype.kind not in "iu":
        # numba knows no half precision on the CPU; sum in float32 and round once.
        total = out.astype(np.float32)
        _scatter_add(total, index, rows.astype(np.float32))
        out[...] = total
        return
    _scatter_add(out, index, rows)


def scatter_sgd(weights: Any, index: Any, grads: Any, lr: float) -> None:
    """Subtract lr * grads from weights[index], one after the other; places may repeat."""
    check_index(index, weights.shape[0])
    _scatter_sub_scaled(weights, index, grads, weights.dtype.type(lr))


@jit
def _coalesce(inverse: Any, rows: Any, out: Any) -> Any:
    fresh = 0
    for i in range(inverse.shape[0]):
        if inverse[i] > fresh:
            return -1
        target = out[inverse[i]]
        row = rows[i]
        if inverse[i] == fresh:
            for j in range(target.shape[0]):
                target[j] = row[j]
            fresh += 1
        elif inverse[i] < fresh:
            for j in range(target.shape[0]):
                target[j] += row[j]
        else:
            return -1
    return fresh


def coalesce(inverse: Any, rows: Any, count: int, out: Any = None) -> Any:
    """Return the sums of rows that share an inverse index, added in order of appearance.

    Args:
        inverse: int64 [n], each in [0, count), as `unique_inverse` gives it: in order of first
            appearance.
        rows: [n, dim].
        count: How many sums there are.
        out: [count, dim] of the rows' dtype, or None.

    Returns:
        [count, dim] of the rows' dtype.
    """
    out = np.empty((count, *rows.shape[1:]), dtype=rows.dtype) if out is None else out
    if rows.dtype.char in "fd" and rows.ndim == 2 and rows.flags.c_contiguous:
        check_index(inverse, count)
        if _coalesce(inverse, rows, out) == count:
            return out
    # Half precision, or indices in another order.
    out[...] = 0
    scatter_add(out, inverse, rows)
    return out

"""Rows of matrices: check, gather, copy, and sum by index in order of appearance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

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
    """View 16-bit elements as integers, which numba can copy."""
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
    position = _first_outside(index, limit)
    if position >= 0:
        raise IndexError(
            f"index {int(index[position])} at position {position} is outside {limit} rows"
        )


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
    """Add rows to out[index], one after the other, so repeated indices add up in order."""
    if len(index) != len(rows):
        raise IndexError(f"{len(index)} indices for {len(rows)} rows")
    check_index(index, out.shape[0])
    if not is_plain(rows) and rows.dtype.kind not in "iu":
        # numba has no half precision on the CPU: sum in float32 and round once.
        total = out.astype(np.float32)
        _scatter_add(total, index, rows.astype(np.float32))
        out[...] = total
        return
    _scatter_add(out, index, rows)


def scatter_sgd(weights: Any, index: Any, grads: Any, lr: float) -> None:
    """Subtract lr * grads from weights[index], one after the other; indices may repeat."""
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


# Unsigned type of the same size, and the bits of an exponent that no finite number has.
_EXPONENTS = {
    "float16": (np.uint16, np.uint16(0x7C00)),
    "bfloat16": (np.uint16, np.uint16(0x7F80)),
    "float32": (np.uint32, np.uint32(0x7F800000)),
    "float64": (np.uint64, np.uint64(0x7FF0000000000000)),
}


# The same by dtype: reading the name of a dtype costs more than checking a row.
_by_dtype: dict[Any, Any] = {}


@jit
def _any_has_all(bits: Any, mask: Any) -> Any:
    found = False
    # No early exit, so that the compiler vectorizes the loop.
    for i in range(bits.shape[0]):
        found |= (bits[i] & mask) == mask
    return found


@jit
def _copy_and_check(bits: Any, mask: Any, out: Any) -> Any:
    found = False
    for i in range(bits.shape[0]):
        # Loaded once: the element that is checked is the one that is stored.
        element = bits[i]
        out[i] = element
        found |= (element & mask) == mask
    return found


def _exponent(array: Any) -> Any:
    """Return how to view an array as integers, and the bits to check; None if it needs numpy."""
    dtype = array.dtype
    known = _by_dtype.get(dtype)
    if known is None:
        known = _by_dtype[dtype] = _EXPONENTS.get(dtype.name) if dtype.isnative else None
    return known if array.flags.c_contiguous else None


def all_finite(array: Any) -> bool:
    """Return whether a floating-point array has no NaN and no infinity."""
    known = _exponent(array)
    if known is None:
        return bool(np.isfinite(array).all())
    return not _any_has_all(array.reshape(-1).view(known[0]), known[1])


def finite_copy(array: Any) -> Any:
    """Return a copy of a floating-point array; None if it has a NaN or an infinity.

    What another process writes to the array meanwhile is in the copy or not, but never unchecked.
    In one pass over memory: a copy and a check take half as long again.
    """
    known = _exponent(array)
    if known is None:
        copy = array.copy()
        return copy if np.isfinite(copy).all() else None
    kind, mask = known
    bits = np.empty(array.size, kind)
    if _copy_and_check(array.reshape(-1).view(kind), mask, bits):
        return None
    return bits.view(array.dtype).reshape(array.shape)


# What numba's stubs do not export.
_see_as_array: Any = getattr(numba, "carray")  # noqa: B009
_BY_SIZE = {2: np.uint16, 4: np.uint32, 8: np.uint64}


def _see_as_pointer(typing: Any, address: Any) -> Any:
    """Cast an integer to a pointer."""
    del typing

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(address), generate


_pointer: Any = intrinsic(_see_as_pointer)


@jit
def _gather(addresses: Any, sizes: Any, firsts: Any, index: Any, out: Any, at: Any) -> None:
    # Sample after sample, so that memory is written from its beginning to its end: column after
    # column it would be a miss of the address cache a row.
    for i in range(out.shape[0]):
        for table in range(index.shape[0]):
            shape = (sizes[table], out.shape[2])
            rows = _see_as_array(_pointer(addresses[table]), shape, out.dtype)
            row = rows[index[table, i] - firsts[table]]
            for j in range(out.shape[2]):
                out[i, at + table, j] = row[j]


def gather_columns(
    matrices: Sequence[Any], firsts: Sequence[int], index: Any, out: Any = None, at: int = 0
) -> Any:
    """Return rows of several matrices side by side, [n, matrices, dim].

    Args:
        matrices: [m, dim] each, of one dim and dtype, C-contiguous.
        firsts: What the first row of each is called.
        index: int64 [matrices, n], each one of the names of a row of its matrix.
        out: [n, columns, dim] of the matrices' dtype, C-contiguous, or None for new memory.
        at: Which column of it the rows of the first matrix go to.

    Raises:
        IndexError: If an index lies outside its matrix, or a matrix has too few columns.
    """
    index = np.ascontiguousarray(index)
    one = matrices[0]
    sizes = [len(matrix) for matrix in matrices]
    lasts = [first + size for first, size in zip(firsts, sizes, strict=True)]
    if index.size and ((index.min(1) < firsts).any() or (index.max(1) >= lasts).any()):
        raise IndexError("an index names no row of its matrix")
    if out is None:
        out = np.empty((index.shape[1], len(matrices), one.shape[1]), one.dtype)
    if not 0 <= at <= out.shape[1] - len(matrices) or len(out) != index.shape[1]:
        raise IndexError(f"{len(matrices)} columns at {at} of {out.shape}")
    addresses = [matrix.ctypes.data for matrix in matrices]
    bits = out.view(_BY_SIZE[one.dtype.itemsize])
    _gather(np.array(addresses), np.array(sizes), np.array(firsts), index, bits, at)
    return out

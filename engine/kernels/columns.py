"""Rows of many matrices side by side, written in one sequential pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from gradmesh.engine.kernels.compile import jit

# What numba's stubs do not export.
_see_as_array: Any = getattr(numba, "carray")  # noqa: B009
_BY_SIZE = {2: np.uint16, 4: np.uint32, 8: np.uint64}


def _see_as_pointer(typing: Any, address: Any) -> Any:
    """See a number as a pointer."""
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
        IndexError: An index names no row of its matrix, or there are not so many columns.
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

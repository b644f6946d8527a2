"""When rows last changed, in cells of a table of fixed size that rows share by their numbers."""

from __future__ import annotations

from typing import Any

from gradmesh.engine.kernels.compile import inline, jit


@inline
def _cell(row: Any, bits: Any) -> Any:
    # The first rows have cells of their own; those far away meet somebody by chance.
    return (row ^ (row >> bits)) & ((1 << bits) - 1)


@jit
def stamp(counts: Any, rows: Any, count: Any, bits: Any) -> None:
    """Put a count into the cell of each row.

    Args:
        counts: Unsigned integers [2**bits].
        rows: int64 [n], any numbers.
        count: The count.
        bits: The logarithm of the number of cells.
    """
    for i in range(rows.shape[0]):
        counts[_cell(rows[i], bits)] = count


@jit
def stamped_after(counts: Any, rows: Any, count: Any, bits: Any, out: Any) -> int:
    """Put the places of rows whose cells have more than a count into out; return how many.

    Args:
        counts: Unsigned integers [2**bits].
        rows: int64 [n].
        count: The count.
        bits: The logarithm of the number of cells.
        out: int64 [n].
    """
    found = 0
    for i in range(rows.shape[0]):
        # Without a branch that nobody can foresee.
        out[found] = i
        found += counts[_cell(rows[i], bits)] > count
    return found

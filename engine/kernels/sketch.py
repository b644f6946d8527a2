"""Sketches of fixed size with shared cells: how often an id was used, when a row changed.

Both may overstate, never understate. Counters of uses belong to buckets, so that they do not depend
on the number of servers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmesh.engine.kernels.compile import inline, jit
from gradmesh.engine.kernels.hashing import spread

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_TOP = np.uint64(52)

# Average uses per counter after which all counters of a bucket are halved: old ids fade.
_USES_A_COUNTER = 8


@inline
def _positions(hashed: Any, mask: Any) -> Any:
    other = spread(hashed + _GOLDEN)
    return np.int64(hashed & mask), np.int64(other & mask)


@jit
def count_uses(
    ids: Any, local: Any, counters: Any, uses: Any, wanted: Any, grow: Any, out: Any
) -> None:
    """Put into out whether each id was used `wanted` times, this use included if `grow`.

    Args:
        ids: int64 [n].
        local: Number here of each bucket.
        counters: uint8 [buckets, 2**k].
        uses: int64 [buckets], counted since the counters were halved.
        wanted: 1 to 255.
        grow: Whether this is a use.
        out: bool [n].
    """
    mask = np.uint64(counters.shape[1] - 1)
    for i in range(ids.shape[0]):
        hashed = spread(ids[i])
        bucket = np.int64(local[np.int64(hashed >> _TOP)])
        row = counters[bucket]
        one, two = _positions(hashed, mask)
        seen = min(row[one], row[two])
        if grow:
            # The smaller counter overstates less, so only it is incremented.
            if seen < 255:
                seen += 1
            row[one] = max(row[one], seen)
            row[two] = max(row[two], seen)
            uses[bucket] += 1
            if uses[bucket] >= _USES_A_COUNTER * row.shape[0]:
                uses[bucket] = 0
                for j in range(row.shape[0]):
                    row[j] >>= 1
        out[i] = seen >= wanted


@jit
def drawn(ids: Any, seed: Any, limit: Any, out: Any) -> None:
    """Put into out whether the hash of (seed, id) is below limit."""
    base = spread(np.uint64(seed) + _GOLDEN)
    for i in range(ids.shape[0]):
        out[i] = spread(base ^ (np.uint64(ids[i]) * _GOLDEN)) < limit


@inline
def _cell(row: Any, bits: Any) -> Any:
    # The first rows have cells of their own; later rows share them.
    return (row ^ (row >> bits)) & ((1 << bits) - 1)


@jit
def mark_changed(counts: Any, rows: Any, count: Any, bits: Any) -> None:
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
def changed_after(counts: Any, rows: Any, count: Any, bits: Any, out: Any) -> int:
    """Put the positions of rows whose cells have more than a count into out; return how many.

    Args:
        counts: Unsigned integers [2**bits].
        rows: int64 [n].
        count: The count.
        bits: The logarithm of the number of cells.
        out: int64 [n].
    """
    found = 0
    for i in range(rows.shape[0]):
        # No branch: it could not be predicted.
        out[found] = i
        found += counts[_cell(rows[i], bits)] > count
    return found

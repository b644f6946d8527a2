"""Distinct ids in order of first appearance, by hashing; never by sorting."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmesh.engine.kernels.compile import inline, jit

_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


@inline
def spread(key: Any) -> Any:
    """Mix the bits of a key, so that its low bits make a good hash."""
    h = np.uint64(key)
    h = (h ^ (h >> np.uint64(30))) * _MIX_1
    h = (h ^ (h >> np.uint64(27))) * _MIX_2
    return h ^ (h >> np.uint64(31))


@jit
def _fill(ids: Any, slots: Any, unique: Any, inverse: Any) -> Any:
    mask = np.uint64(slots.shape[0] - 1)
    count = 0
    for i in range(ids.shape[0]):
        key = ids[i]
        h = spread(key) & mask
        while True:
            found = slots[h]
            if found < 0:
                slots[h] = count
                unique[count] = key
                inverse[i] = count
                count += 1
                break
            if unique[found] == key:
                inverse[i] = found
                break
            h = (h + np.uint64(1)) & mask
    return count


@jit
def _repeats(ids: Any, slots: Any) -> Any:
    mask = np.uint64(slots.shape[0] - 1)
    for i in range(ids.shape[0]):
        key = ids[i]
        h = spread(key) & mask
        while slots[h] >= 0:
            if ids[slots[h]] == key:
                return True
            h = (h + np.uint64(1)) & mask
        slots[h] = i
    return False


def has_repeats(ids: Any) -> bool:
    """Tell whether an id stands twice in int64 [n]."""
    count = ids.shape[0]
    if count < 2:
        return False
    # A quarter full, so that most searches end where they begin.
    slots = np.full(1 << max(4, (4 * count - 1).bit_length()), -1, dtype=np.int32)
    return bool(_repeats(ids, slots))


def unique_inverse(ids: Any) -> tuple[Any, Any]:
    """Return the distinct ids and, for each id, where it stands among them.

    Args:
        ids: Integers of any shape; taken as int64.

    Returns:
        unique, int64 [u], in order of first appearance, and inverse, int64 [n], of the flattened
        ids.
    """
    flat = np.ascontiguousarray(ids, dtype=np.int64).reshape(-1)
    count = flat.shape[0]
    if count == 1:
        return flat, np.zeros(1, dtype=np.int64)
    # At most half full, so that probes stay short.
    slots = np.full(1 << max(4, (2 * count - 1).bit_length()), -1, dtype=np.int32)
    unique = np.empty(count, dtype=np.int64)
    inverse = np.empty(count, dtype=np.int64)
    found = _fill(flat, slots, unique, inverse)
    return unique[:found], inverse

"""The marks of a bucket index, see `bucket_index`: read and set, for copies of a table."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradmesh.engine.kernels.compile import jit
from gradmesh.engine.kernels.unique import spread

_BEGIN, _CAPACITY = 0, 1
_MASK = 0xFFFFFFFF
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_TOP = np.uint64(52)


@jit
def find_marks(
    ids: Any, local: Any, heads: Any, entries: Any, oldest: Any, slots: Any, marks: Any
) -> None:
    """Put slot and mark of each id into slots and marks; slot -1 if absent or below `oldest`."""
    for i in range(ids.shape[0]):
        slots[i] = -1
        marks[i] = 0
        hashed = spread(ids[i])
        bucket = local[hashed >> _TOP]
        begin, capacity = heads[bucket, _BEGIN], heads[bucket, _CAPACITY]
        place: Any = np.int64(((hashed & _LOW) * np.uint64(capacity)) >> _HALF)
        while entries[begin + place, 1] != 0:
            if entries[begin + place, 0] == ids[i]:
                mark = (entries[begin + place, 1] >> 32) & _MASK
                if mark >= oldest:
                    slots[i] = (entries[begin + place, 1] & _MASK) - 1
                    marks[i] = mark
                break
            place += 1
            if place == capacity:
                place = 0


@jit
def list_marks(
    bucket: Any, heads: Any, entries: Any, oldest: Any, ids: Any, slots: Any, marks: Any
) -> Any:
    """List ids, slots and marks of a bucket, not below `oldest`; return how many there are."""
    begin = heads[bucket, _BEGIN]
    count = 0
    for i in range(begin, begin + heads[bucket, _CAPACITY]):
        value = entries[i, 1]
        mark = (value >> 32) & _MASK
        if value != 0 and mark >= oldest:
            ids[count] = entries[i, 0]
            slots[count] = (value & _MASK) - 1
            marks[count] = mark
            count += 1
    return count


@jit
def set_marks(ids: Any, local: Any, heads: Any, entries: Any, marks: Any) -> None:
    """Set the mark of each id that is there."""
    for i in range(ids.shape[0]):
        hashed = spread(ids[i])
        bucket = local[hashed >> _TOP]
        begin, capacity = heads[bucket, _BEGIN], heads[bucket, _CAPACITY]
        place: Any = np.int64(((hashed & _LOW) * np.uint64(capacity)) >> _HALF)
        while entries[begin + place, 1] != 0:
            if entries[begin + place, 0] == ids[i]:
                slot = entries[begin + place, 1] & _MASK
                entries[begin + place, 1] = (np.int64(marks[i]) << 32) | slot
                break
            place += 1
            if place == capacity:
                place = 0

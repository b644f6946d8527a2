"""Hash tables of int64 ids: distinct ids, repeats, and a map from ids to slots."""

from __future__ import annotations

from typing import Any, final

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
    """Return whether an id appears twice in int64 [n]."""
    count = ids.shape[0]
    if count < 2:
        return False
    # A quarter full, so that most searches end at the first slot.
    slots = np.full(1 << max(4, (4 * count - 1).bit_length()), -1, dtype=np.int32)
    return bool(_repeats(ids, slots))


def unique_inverse(ids: Any) -> tuple[Any, Any]:
    """Return the distinct ids and the position of each id among them.

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


_EMPTY = -1


@jit
def _find(ids: Any, keys: Any, values: Any, out: Any) -> None:
    mask = np.uint64(keys.shape[0] - 1)
    for i in range(ids.shape[0]):
        h = spread(ids[i]) & mask
        while values[h] != _EMPTY and keys[h] != ids[i]:
            h = (h + np.uint64(1)) & mask
        out[i] = values[h]


@jit
def _insert(ids: Any, keys: Any, values: Any, out: Any, count: Any) -> Any:
    mask = np.uint64(keys.shape[0] - 1)
    for i in range(ids.shape[0]):
        h = spread(ids[i]) & mask
        while values[h] != _EMPTY and keys[h] != ids[i]:
            h = (h + np.uint64(1)) & mask
        if values[h] == _EMPTY:
            keys[h] = ids[i]
            values[h] = count
            count += 1
        out[i] = values[h]
    return count


@jit
def _move(old_keys: Any, old_values: Any, keys: Any, values: Any) -> None:
    mask = np.uint64(keys.shape[0] - 1)
    for i in range(old_keys.shape[0]):
        if old_values[i] != _EMPTY:
            h = spread(old_keys[i]) & mask
            while values[h] != _EMPTY:
                h = (h + np.uint64(1)) & mask
            keys[h] = old_keys[i]
            values[h] = old_values[i]


@jit
def _list(keys: Any, values: Any, out: Any) -> None:
    for i in range(keys.shape[0]):
        if values[i] != _EMPTY:
            out[values[i]] = keys[i]


@final
class IdMap:
    """Give each id a slot, 0, 1, 2 … in order of insertion; open addressing, grows by doubling.

    Args:
        capacity: Ids that fit before the first growth.
    """

    __slots__ = ("_count", "_keys", "_values")

    def __init__(self, capacity: int = 16) -> None:
        self._count = 0
        self._allocate(capacity)

    def __len__(self) -> int:
        return self._count

    def find(self, ids: Any) -> Any:
        """Return the slot of each id, int64 [n]; -1 where the map has none."""
        flat = np.ascontiguousarray(ids, dtype=np.int64).reshape(-1)
        out = np.empty(flat.shape[0], dtype=np.int64)
        _find(flat, self._keys, self._values, out)
        return out

    def insert(self, ids: Any) -> Any:
        """Return the slot of each id, int64 [n], giving new ids the next slots."""
        flat = np.ascontiguousarray(ids, dtype=np.int64).reshape(-1)
        if 2 * (self._count + flat.shape[0]) > self._keys.shape[0]:
            self._grow(self._count + flat.shape[0])
        out = np.empty(flat.shape[0], dtype=np.int64)
        self._count = int(_insert(flat, self._keys, self._values, out, self._count))
        return out

    def ids(self) -> Any:
        """Return all ids in order of their slots, int64 [len]."""
        out = np.empty(self._count, dtype=np.int64)
        _list(self._keys, self._values, out)
        return out

    def _allocate(self, capacity: int) -> None:
        size = 1 << max(4, (2 * capacity - 1).bit_length())
        self._keys = np.zeros(size, dtype=np.int64)
        self._values = np.full(size, _EMPTY, dtype=np.int64)

    def _grow(self, capacity: int) -> None:
        keys, values = self._keys, self._values
        self._allocate(max(capacity, keys.shape[0]))
        _move(keys, values, self._keys, self._values)

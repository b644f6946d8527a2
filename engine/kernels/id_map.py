"""An open-addressing hash map from int64 ids to slots, growing by doubling."""

from __future__ import annotations

from typing import Any, final

import numpy as np

from gradmesh.engine.kernels.compile import jit
from gradmesh.engine.kernels.unique import spread

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
    """Give each id a slot, 0, 1, 2 … in order of insertion.

    Args:
        capacity: How many ids to make room for at first.
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

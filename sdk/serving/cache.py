"""A cache of the recently read rows of one table."""

import threading
import time
from collections.abc import Callable
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from gradmesh.engine.kernels import IdMap
from gradmesh.protos.frame import Array
from gradmesh.protos.sharding import Ids

# Share of a full cache that stays; evicting row by row would be slow.
_KEPT_SHARE = 0.75


@final
class RowCache:
    """Rows by id; the least recently used are evicted, a quarter of the cache at a time.

    Args:
        capacity: Most rows.
        dim: Elements in a row.
        dtype: Of the elements.
        max_age_s: Seconds after which a row expires.
        clock: Monotonic seconds, replaced in tests.
    """

    def __init__(
        self,
        capacity: int,
        dim: int,
        dtype: np.dtype[Any],
        max_age_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._capacity = capacity
        self._max_age_s = max_age_s
        self._clock = clock
        self._lock = threading.Lock()  # guards all below
        self._index = IdMap(capacity)
        self._rows = np.empty((capacity, dim), dtype)
        self._fetched_at = np.zeros(capacity)
        self._used = np.zeros(capacity, np.int64)
        self._uses = 0

    def __len__(self) -> int:
        return len(self._index)

    def now(self) -> float:
        """Return the time for `put`; read it before the rows are looked up."""
        return self._clock()

    def take(self, ids: Ids, out: Array) -> NDArray[np.bool_]:
        """Write the cached rows of ids to `out`; return which ids are missing or expired."""
        with self._lock:
            slots = self._index.find(ids)
            oldest = self._clock() - self._max_age_s
            found: NDArray[np.bool_] = (slots >= 0) & (self._fetched_at[slots] >= oldest)
            here = slots[found]
            out[found] = self._rows[here]
            self._uses += 1
            self._used[here] = self._uses
            return ~found

    def put(self, ids: Ids, rows: Array, fetched_at: float) -> None:
        """Cache rows; if not all fit, the first ones."""
        ids, rows = ids[: self._capacity], rows[: self._capacity]
        with self._lock:
            if len(self._index) + ids.size > self._capacity:
                self._shrink(min(self._capacity - ids.size, int(self._capacity * _KEPT_SHARE)))
            slots = self._index.insert(ids)
            self._rows[slots] = rows
            self._fetched_at[slots] = fetched_at
            self._uses += 1
            self._used[slots] = self._uses

    def _shrink(self, keep: int) -> None:
        count = len(self._index)
        newest = np.argsort(self._used[:count], kind="stable")[max(0, count - keep) :]
        ids = self._index.ids()[newest]
        for array in (self._rows, self._fetched_at, self._used):
            array[: newest.size] = array[newest]
        self._index = IdMap(self._capacity)
        self._index.insert(ids)

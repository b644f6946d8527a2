"""The rows of one table that were asked for last, for a while."""

import threading
import time
from collections.abc import Callable
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from gradmesh.engine.kernels import IdMap
from gradmesh.protos.frame import Array
from gradmesh.protos.sharding import Ids

# When the cache is full so much of it stays; making room for each row by itself would be slow.
_KEPT_SHARE = 0.75


@final
class RowCache:
    """Rows by id; those used longest ago go first, a quarter at a time.

    Args:
        capacity: Most rows.
        dim: Elements in a row.
        dtype: Of the elements.
        max_age_s: Seconds after which a row is not used any more.
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
        self._places = IdMap(capacity)
        self._rows = np.empty((capacity, dim), dtype)
        self._fetched_at = np.zeros(capacity)
        self._used = np.zeros(capacity, np.int64)
        self._uses = 0

    def __len__(self) -> int:
        return len(self._places)

    def now(self) -> float:
        """Return the time that `put` wants: taken before the rows are asked for."""
        return self._clock()

    def take(self, ids: Ids, out: Array) -> NDArray[np.bool_]:
        """Write the rows of ids that are here and young enough to `out`; return which are not."""
        with self._lock:
            places = self._places.find(ids)
            oldest = self._clock() - self._max_age_s
            found: NDArray[np.bool_] = (places >= 0) & (self._fetched_at[places] >= oldest)
            here = places[found]
            out[found] = self._rows[here]
            self._uses += 1
            self._used[here] = self._uses
            return ~found

    def put(self, ids: Ids, rows: Array, fetched_at: float) -> None:
        """Keep rows; of more than fit, the first ones."""
        ids, rows = ids[: self._capacity], rows[: self._capacity]
        with self._lock:
            if len(self._places) + ids.size > self._capacity:
                self._shrink(min(self._capacity - ids.size, int(self._capacity * _KEPT_SHARE)))
            places = self._places.insert(ids)
            self._rows[places] = rows
            self._fetched_at[places] = fetched_at
            self._uses += 1
            self._used[places] = self._uses

    def _shrink(self, keep: int) -> None:
        count = len(self._places)
        newest = np.argsort(self._used[:count], kind="stable")[max(0, count - keep) :]
        ids = self._places.ids()[newest]
        for array in (self._rows, self._fetched_at, self._used):
            array[: newest.size] = array[newest]
        self._places = IdMap(self._capacity)
        self._places.insert(ids)

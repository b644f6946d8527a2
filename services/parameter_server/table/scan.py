"""Scans of an index, for snapshots and migration: rows in pieces, eviction marks, bucket state.

A scan accesses private attributes of its index, under the table's lock.
"""

from abc import ABC, abstractmethod
from typing import TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from gradmesh.engine.kernels import bucket_index as kernel
from gradmesh.protos.errors import InvalidRequest, StoreFull
from gradmesh.protos.frame import Array
from gradmesh.protos.sharding import BUCKETS, Ids, buckets_of
from gradmesh.services.parameter_server.table.admission import FrequentIds
from gradmesh.services.parameter_server.table.hash import _SWEEP_BUCKETS, HashIndex
from gradmesh.services.parameter_server.table.index import DenseIndex, Handles, Index, Slots

Marks: TypeAlias = NDArray[np.uint32]
Listed: TypeAlias = tuple[Ids, Slots, Marks]

_BLOCK_ROWS = 4096
_NONE: list[int] = []


class IndexScan(ABC):
    """Lists the rows of an index in pieces, and the pieces that an operation may evict from.

    Attributes:
        evicts: Whether rows can be evicted or expire, and uses are marked.
    """

    evicts: bool

    @property
    @abstractmethod
    def pieces(self) -> int:
        """Number of pieces."""

    @abstractmethod
    def piece(self, number: int, oldest: int) -> Listed:
        """Return the rows of a piece whose mark is not below `oldest`."""

    @abstractmethod
    def find(self, handles: Handles, oldest: int) -> tuple[Slots, Marks]:
        """Return slots and marks; slot -1 where there is no row."""

    @abstractmethod
    def oldest(self, step: int) -> int:
        """Return the least mark of a row that has not expired at a step."""

    @abstractmethod
    def pieces_of(self, handles: Handles) -> list[int]:
        """Return the pieces from which new rows of these handles may evict others."""

    @abstractmethod
    def swept_next(self) -> list[int]:
        """Return the pieces that the next sweep may drop rows of."""

    @abstractmethod
    def bucket_state(self) -> dict[str, Array]:
        """Return copies of the state per bucket; empty if there is none."""

    @abstractmethod
    def load_bucket_state(self, arrays: dict[str, Array]) -> None:
        """Set what `bucket_state` returned, for buckets of this server."""

    @abstractmethod
    def insert(self, ids: Ids, step: int) -> tuple[Slots, Slots]:
        """Make rows regardless of admission; return all slots, and those of new rows.

        Raises:
            StoreFull: They do not fit.
        """

    @abstractmethod
    def set_marks(self, ids: Ids, marks: Marks) -> None:
        """Set the marks of rows."""


@final
class DenseScan(IndexScan):
    """Scan of a dense table: pieces are ranges of slots."""

    evicts = False

    def __init__(self, index: DenseIndex) -> None:
        self._index = index

    @property
    def pieces(self) -> int:
        """Number of pieces."""
        return -(-self._index.row_count // _BLOCK_ROWS)

    def piece(self, number: int, oldest: int) -> Listed:
        """Return the used rows of a range."""
        begin = number * _BLOCK_ROWS
        end = min(begin + _BLOCK_ROWS, self._index.row_count)
        slots = self._index.peek(np.arange(begin, end), 0)
        slots = slots[slots >= 0]
        return self._index.ids_of(slots), slots, np.zeros(slots.size, np.uint32)

    def find(self, handles: Handles, oldest: int) -> tuple[Slots, Marks]:
        """Return the slots of rows that were used."""
        return self._index.peek(handles, 0), np.zeros(handles.size, np.uint32)

    def oldest(self, step: int) -> int:
        """Return 0: nothing expires."""
        return 0

    def pieces_of(self, handles: Handles) -> list[int]:
        """Return none: nothing is evicted."""
        return _NONE

    def swept_next(self) -> list[int]:
        """Return none: nothing is swept."""
        return _NONE

    def bucket_state(self) -> dict[str, Array]:
        """Return none."""
        return {}

    def load_bucket_state(self, arrays: dict[str, Array]) -> None:
        """Do nothing: there is none."""

    def insert(self, ids: Ids, step: int) -> tuple[Slots, Slots]:
        """Mark rows as used."""
        found = self._index.use(self._index.handles_of(ids), step, counts=False)
        return found.slots, found.fresh_slots

    def set_marks(self, ids: Ids, marks: Marks) -> None:
        """Do nothing: there are no marks."""


@final
class HashScan(IndexScan):
    """Scan of a hash table: pieces are buckets."""

    def __init__(self, index: HashIndex) -> None:
        self._index = index
        self.evicts = index._limits.policy != kernel.KEEP

    @property
    def pieces(self) -> int:
        """Number of buckets here."""
        return self._index._owned.count

    def piece(self, number: int, oldest: int) -> Listed:
        """Return the rows of a bucket."""
        heads, entries = self._index._heads, self._index._entries.array
        used = int(heads[number, kernel.USED])
        ids, slots = np.empty(used, np.int64), np.empty(used, np.int64)
        marks = np.empty(used, np.uint32)
        count = kernel.list_marks(number, heads, entries, oldest, ids, slots, marks)
        return ids[:count], slots[:count], marks[:count]

    def find(self, handles: Handles, oldest: int) -> tuple[Slots, Marks]:
        """Return slots and marks."""
        slots, marks = np.empty(handles.size, np.int64), np.empty(handles.size, np.uint32)
        index = self._index
        kernel.find_marks(
            handles, index._owned.local, index._heads, index._entries.array, oldest, slots, marks
        )
        return slots, marks

    def oldest(self, step: int) -> int:
        """Return the least mark that has not expired."""
        return self._index._oldest(step)

    def pieces_of(self, handles: Handles) -> list[int]:
        """Return the buckets of ids."""
        if not self.evicts:
            return _NONE
        found: list[int] = np.unique(self._index._owned.local[buckets_of(handles)]).tolist()
        return found

    def swept_next(self) -> list[int]:
        """Return the next few buckets, if rows expire."""
        if not self._index._limits.ttl_steps:
            return _NONE
        count = self._index._owned.count
        first = self._index._swept + 1
        return [(first + i) % count for i in range(min(_SWEEP_BUCKETS, count))]

    def bucket_state(self) -> dict[str, Array]:
        """Return the clocks of the buckets and the counters of admission."""
        index = self._index
        found: dict[str, Array] = {}
        if self.evicts:
            found["clocks"] = index._clocks.copy()
        if isinstance(index._admission, FrequentIds):
            found["counters"] = index._admission._counters.array.copy()
            found["uses"] = index._admission._uses.copy()
        if found:
            local = index._owned.local
            # Local numbers follow the order of the buckets.
            found["buckets"] = np.flatnonzero(local >= 0)
        return found

    def load_bucket_state(self, arrays: dict[str, Array]) -> None:
        """Set clocks and counters.

        Raises:
            InvalidRequest: They are not those of buckets of this server.
        """
        index = self._index
        buckets = arrays["buckets"]
        is_list = buckets.ndim == 1 and buckets.dtype.kind in "iu"
        if not is_list or ((buckets < 0) | (buckets >= BUCKETS)).any():
            raise InvalidRequest(f"table {index._table!r}: buckets must be from 0 to {BUCKETS - 1}")
        here = index._owned.local[buckets]
        if (here < 0).any():
            raise InvalidRequest(f"table {index._table!r}: a bucket is not on this server")
        wanted = {"buckets": here, **self._bucket_arrays()}
        if set(arrays) != set(wanted) or any(
            a.shape != (here.size, *wanted[n].shape[1:]) or a.dtype != wanted[n].dtype
            for n, a in arrays.items()
            if n != "buckets"
        ):
            raise InvalidRequest(f"table {index._table!r}: {sorted(arrays)} do not fit its buckets")
        for name, array in self._bucket_arrays().items():
            array[here] = arrays[name]

    def _bucket_arrays(self) -> dict[str, Array]:
        index = self._index
        found: dict[str, Array] = {"clocks": index._clocks} if self.evicts else {}
        if isinstance(index._admission, FrequentIds):
            found["counters"] = index._admission._counters.array
            found["uses"] = index._admission._uses
        return found

    def insert(self, ids: Ids, step: int) -> tuple[Slots, Slots]:
        """Make rows."""
        index = self._index
        slots, _ = self.find(ids, 0)
        missing = ids[slots < 0]
        index._reserve(missing.size)
        fresh = index._insert(missing, step)
        if fresh.size and fresh.min() < 0:
            raise StoreFull(f"table {index._table!r}: too many ids fall into one bucket")
        return self.find(ids, 0)[0], fresh

    def set_marks(self, ids: Ids, marks: Marks) -> None:
        """Set marks."""
        index = self._index
        kernel.set_marks(ids, index._owned.local, index._heads, index._entries.array, marks)


def scan_of(index: Index) -> IndexScan:
    """Return the scan of an index."""
    if isinstance(index, DenseIndex):
        return DenseScan(index)
    assert isinstance(index, HashIndex)
    return HashScan(index)

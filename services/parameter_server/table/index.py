"""Indexes, which map ids to slots: the difference between dense and hash tables.

Callers hold *handles*, which stay valid over evictions. Handles become slots only inside one locked
operation, so a late gradient never reaches another row.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Self, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from gradmesh.engine.kernels import has_repeats, rank_bits
from gradmesh.protos.errors import IdOutOfRange, InvalidRequest, StaleShardMap
from gradmesh.protos.frame import Array
from gradmesh.protos.sharding import BUCKETS, Ids, ShardMap
from gradmesh.services.parameter_server.table.memory import Reserved


@final
@dataclass(frozen=True, slots=True, eq=False)
class OwnedBuckets:
    """The buckets of one shard, numbered.

    Args:
        local: int32 [BUCKETS], the local number of each bucket; -1 for those of other servers.
        count: Number of buckets here.
    """

    local: NDArray[np.int32]
    count: int

    @classmethod
    def of(cls, shards: ShardMap, shard: int) -> Self:
        """Return the place of a shard."""
        here = np.asarray(shards.bucket_shards) == shard
        local = np.where(here, np.cumsum(here) - 1, -1).astype(np.int32)
        return cls(local, int(here.sum()))

    @property
    def is_everything(self) -> bool:
        """Whether this is the only shard."""
        return self.count == BUCKETS

    def refuse(self, table: str, id_: int) -> StaleShardMap:
        """Return the error for an id that is not here."""
        return StaleShardMap(
            f"table {table!r}: id {id_} is on another server; fetch the shard map and route again",
            table=table,
            id=id_,
        )


Handles: TypeAlias = NDArray[np.int64]
Slots: TypeAlias = NDArray[np.int64]

_NONE: Slots = np.empty(0, np.int64)


class Found(NamedTuple):
    """Slots of rows.

    Args:
        slots: int64 [n], -1 where there is no row.
        missing: How many ids had no row before this use.
        fresh_ids: Ids of the rows that were made or reset.
        fresh_slots: Their slots; a slot may occur twice, then the last id has it.
    """

    slots: Slots
    missing: int = 0
    fresh_ids: Ids = _NONE
    fresh_slots: Slots = _NONE


class Index(ABC):
    """Finds rows by id. All but `handles_of` is called under the table's lock."""

    @abstractmethod
    def handles_of(self, ids: Ids) -> Handles:
        """Return handles, int64 [n].

        Raises:
            IdOutOfRange: An id is outside the table.
            StaleShardMap: A row is on another server.
        """

    @abstractmethod
    def ids_of(self, handles: Handles) -> Ids:
        """Return the ids of handles."""

    def has_repeats(self, handles: Handles) -> bool:
        """Return whether a handle appears twice."""
        return has_repeats(handles)

    @abstractmethod
    def peek(self, handles: Handles, step: int) -> Slots:
        """Return slots, -1 where there is no row; MUST change nothing."""

    @abstractmethod
    def use(self, handles: Handles, step: int, *, counts: bool) -> Found:
        """Return slots for reading or changing rows, making rows that are missing.

        Args:
            handles: Handles of the rows.
            step: Steps applied to the table, the clock of expiry.
            counts: Whether this use counts towards admission.

        Raises:
            StoreFull: New rows do not fit; nothing changes.
        """

    def check_room(self, handles: Handles, step: int, others: int) -> int:
        """Return the memory that making missing rows takes; MUST change nothing.

        Args:
            handles: Handles of the rows.
            step: Steps applied to the table.
            others: Memory that other tables are about to take.

        Raises:
            StoreFull: They do not fit.
        """
        return 0

    @abstractmethod
    def reset(self) -> None:
        """Remove all rows."""

    @abstractmethod
    def blocks(self, step: int) -> Iterator[tuple[Ids, Slots]]:
        """Yield (ids, slots) of all rows that were ever used, each once, in pieces."""

    @abstractmethod
    def sweep(self, step: int) -> None:
        """Do a bounded part of deferred work; called once per step."""

    @property
    @abstractmethod
    def row_count(self) -> int:
        """Number of rows."""

    @property
    @abstractmethod
    def bytes(self) -> int:
        """Memory of the index itself."""

    @property
    def slot_count(self) -> int:
        """Number of slots that take memory; for fixed rows all do, used or not."""
        return self.row_count

    @property
    def bytes_a_row(self) -> float:
        """Computed bytes of the index per row."""
        return self.bytes / max(1, self.row_count)

    @property
    def evicted(self) -> int:
        """Number of rows evicted so far."""
        return 0


def check_ids(ids: Array, table: str) -> None:
    """Check that an array can be ids.

    Raises:
        InvalidRequest: It is not int64 [n].
    """
    if ids.dtype != np.int64 or ids.ndim != 1:
        raise InvalidRequest(
            f"table {table!r}: ids must be int64 [n], not {ids.dtype} {ids.shape}", table=table
        )


_BLOCK_ROWS = 1 << 16
_BITS_A_SLOT = 64


@final
class DenseIndex(Index):
    """Slots of fixed rows; a handle is a slot.

    Args:
        table: Name, for messages.
        rows: Rows of the whole table.
        owned: The buckets of this server.
    """

    def __init__(self, table: str, rows: int, owned: OwnedBuckets) -> None:
        self._table = table
        self._rows = rows
        self._owned = owned
        self._words = None if owned.is_everything else Reserved((-(-rows // 64), 2), np.uint64)
        self._count = rows
        if self._words is not None:
            self._count = int(rank_bits.mark_owned(self._words.array, rows, owned.local))
        self._used = Reserved((-(-self._count // 8) + 1,), np.uint8)

    @staticmethod
    def estimate_bytes(rows: int, owned: OwnedBuckets) -> int:
        """Return the memory of the index of a shard, before it is made."""
        words = 0 if owned.is_everything else -(-rows // 64) * 16
        return words + -(-rows * owned.count // BUCKETS) // 8

    def handles_of(self, ids: Ids) -> Handles:
        """Return the slots of ids."""
        check_ids(ids, self._table)
        wrong = rank_bits.outside(ids, self._rows)
        if wrong >= 0:
            bad = int(ids[wrong])
            raise IdOutOfRange(
                f"table {self._table!r}: id {bad} is not among its rows 0 to {self._rows - 1}",
                table=self._table,
                id=bad,
            )
        if self._words is None:
            return ids.copy()
        slots = np.empty(ids.size, np.int64)
        foreign = rank_bits.ranks(ids, self._words.array, slots)
        if foreign >= 0:
            raise self._owned.refuse(self._table, int(ids[foreign]))
        return slots

    def ids_of(self, handles: Handles) -> Ids:
        """Return the ids at slots."""
        if self._words is None:
            return handles
        ids = np.empty(handles.size, np.int64)
        rank_bits.select(handles, self._words.array, ids)
        return ids

    def has_repeats(self, handles: Handles) -> bool:
        """Return whether a slot appears twice."""
        if self._count > _BITS_A_SLOT * handles.size:
            return has_repeats(handles)
        # For many slots a bit of each row takes less memory, and so less time, than hashing them.
        bits = np.zeros(self._count // 8 + 1, np.uint8)
        first = rank_bits.first_uses(handles, bits, np.empty(handles.size, np.int64))
        return bool(first < handles.size)

    def peek(self, handles: Handles, step: int) -> Slots:
        """Return the slots of rows that were used before, -1 for others."""
        slots = np.empty(handles.size, np.int64)
        rank_bits.absent(handles, self._used.array, slots)
        return slots

    def use(self, handles: Handles, step: int, *, counts: bool) -> Found:
        """Return slots; rows used for the first time are fresh."""
        fresh = np.empty(handles.size, np.int64)
        count = rank_bits.first_uses(handles, self._used.array, fresh)
        if not count:
            return Found(handles)
        slots = fresh[:count].copy()
        return Found(handles, 0, self.ids_of(slots), slots)

    def reset(self) -> None:
        """Mark all rows as unused."""
        self._used.clear()

    def blocks(self, step: int) -> Iterator[tuple[Ids, Slots]]:
        """Yield the rows that were used, in order of their slots."""
        for begin in range(0, self._count, _BLOCK_ROWS):
            slots = np.arange(begin, min(begin + _BLOCK_ROWS, self._count))
            found = self.peek(slots, step)
            held = found[found >= 0]
            if held.size:
                yield self.ids_of(held), held

    def sweep(self, step: int) -> None:
        """Do nothing: no work is deferred."""

    @property
    def row_count(self) -> int:
        """Rows of this shard, used or not."""
        return self._count

    @property
    def bytes(self) -> int:
        """Memory of ranks and used bits."""
        words = 0 if self._words is None else self._words.array.nbytes
        return words + self._used.array.nbytes

"""The index of a hash table: any int64 id, its row made on first use.

Growth, eviction and expiry work on one bucket at a time. A bucket is also the unit of sharding: its
rows depend on its own history alone, so not on the number of servers.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from gradmesh.engine.kernels import bucket_index as kernel
from gradmesh.protos.errors import StoreFull
from gradmesh.protos.sharding import Ids
from gradmesh.sdk.table.spec import INDEX_BYTES_A_ROW
from gradmesh.services.parameter_server.table.admission import AdmissionPolicy
from gradmesh.services.parameter_server.table.index import (
    Found,
    Handles,
    Index,
    OwnedBuckets,
    Slots,
    check_ids,
)
from gradmesh.services.parameter_server.table.memory import Account, Reserved
from gradmesh.services.parameter_server.table.stats import TableStats

ENTRY_BYTES = 16

# From this size on a region is whole pages, which are released one by one.
_PAGE_ENTRIES = 256
_SMALL = (8, 16, 32, 64, 128)
_DEAD = 4096
_MAX_SLOTS = 2**32 - 2
_SWEEP_BUCKETS = 32
_BLOCK_ROWS = 1 << 14


@final
@dataclass(frozen=True, slots=True)
class RowLimits:
    """Limits on the lifetime and the number of rows.

    Args:
        policy: Meaning of marks, as in the kernel.
        ttl_steps: Steps after which an unused row expires; 0 for never.
        bucket_rows: Most rows of one bucket; 0 for any number.
        evicts: Whether a full bucket evicts; otherwise new rows are refused.
    """

    policy: int = kernel.KEEP
    ttl_steps: int = 0
    bucket_rows: int = 0
    evicts: bool = False


@final
class HashIndex(Index):
    """Slots of rows that are made and evicted; a handle is an id.

    Args:
        table: Name, for messages.
        owned: The buckets of this server.
        row_bytes: Memory of one row with its state.
        capacity: Rows for which address space is reserved.
        limits: Limits of the table.
        admission: Which ids get a row.
        account: Memory, taken before rows are made.
        fixed_bytes: Memory of the table that does not grow.
        stats: Counters of the table.
        ensure: Allocates disk for a number of slots, or raises StoreFull.
    """

    def __init__(
        self,
        table: str,
        owned: OwnedBuckets,
        *,
        row_bytes: int,
        capacity: int,
        limits: RowLimits,
        admission: AdmissionPolicy,
        account: Account,
        fixed_bytes: int,
        stats: TableStats,
        ensure: Callable[[int], None] = lambda slots: None,
    ) -> None:
        self._table = table
        self._owned = owned
        self._row_bytes = row_bytes
        self._limits = limits
        self._admission = admission
        self._account = account
        self._fixed_bytes = fixed_bytes
        self._stats = stats
        self._ensure = ensure
        self._max_rows = min(capacity, _MAX_SLOTS)
        if limits.bucket_rows:
            self._max_rows = min(self._max_rows, limits.bucket_rows * owned.count)
        self._sizes = _size_classes(owned.count, self._max_rows)
        total = int(self._sizes[-1, 1] + self._sizes[-1, 0] * owned.count)
        # A search for an id has one cache miss; with small pages it would have two.
        big = int(self._sizes[len(_SMALL), 1]) * ENTRY_BYTES
        self._entries = Reserved((total, 2), np.int64, huge_from=big)
        self._free = Reserved((self._max_rows,), np.uint32)
        self._dead = np.empty((_DEAD, 2), np.int64)
        self._heads = np.empty((owned.count, 4), np.int64)
        self._clocks = np.zeros(owned.count, np.int64)
        self._counts = np.zeros(8, np.int64)
        self._swept = 0
        self._least_class = 0
        self._evicted = 0
        self._start()
        account.take(fixed_bytes + self.bytes)

    def _start(self) -> None:
        self._heads[:, kernel.CAPACITY] = self._sizes[0, 0]
        self._heads[:, kernel.BEGIN] = np.arange(self._owned.count) * self._sizes[0, 0]
        self._heads[:, kernel.USED] = 0
        self._heads[:, kernel.CLASS] = 0
        self._clocks[:] = 0
        self._evicted += int(self._counts[kernel.EVICTED])
        self._counts[:] = 0
        self._least_class = 0

    def handles_of(self, ids: Ids) -> Handles:
        """Return the ids themselves."""
        check_ids(ids, self._table)
        if not self._owned.is_everything:
            foreign = kernel.first_foreign(ids, self._owned.local)
            if foreign >= 0:
                raise self._owned.refuse(self._table, int(ids[foreign]))
        return ids.copy()

    def ids_of(self, handles: Handles) -> Ids:
        """Return the handles themselves."""
        return handles

    def peek(self, handles: Handles, step: int) -> Slots:
        """Return slots, -1 where there is no row or it has expired."""
        slots = np.empty(handles.size, np.int64)
        kernel.find(
            handles, self._owned.local, self._heads, self._entries.array, self._oldest(step), slots
        )
        return slots

    def use(self, handles: Handles, step: int, *, counts: bool) -> Found:
        """Return slots; missing rows are made if they are admitted."""
        slots, missing, expired = self._use(handles, step, self._oldest(step))
        if not missing and not expired.size:
            return Found(slots)
        made_ids, made_slots = self._admit(handles[slots < 0], step, counts)
        again, again_slots = handles[expired], slots[expired]
        if again.size:
            # Only now, because an error above must leave them expired.
            self._use(again, step, 0)
            self._evicted += again.size
        # An eviction for a later id may have removed the row of an earlier one.
        slots = self.peek(handles, step)
        # New rows come last: they may have taken the slot of an expired row.
        fresh_ids = np.concatenate([again, made_ids])
        fresh_slots = np.concatenate([again_slots, made_slots])
        return Found(slots, missing + again.size, fresh_ids, fresh_slots)

    def _use(self, handles: Handles, step: int, oldest: int) -> tuple[Slots, int, Slots]:
        slots = np.empty(handles.size, np.int64)
        if self._limits.policy == kernel.KEEP:
            missing = kernel.find(
                handles, self._owned.local, self._heads, self._entries.array, 0, slots
            )
            return slots, int(missing), slots[:0]
        expired = np.empty(handles.size if oldest else 0, np.int64)
        missing, stale = kernel.use(
            handles,
            self._owned.local,
            self._heads,
            self._entries.array,
            self._limits.policy,
            step,
            oldest,
            self._clocks,
            slots,
            expired,
        )
        return slots, int(missing), expired[:stale]

    def _admit(self, ids: Ids, step: int, counts: bool) -> tuple[Ids, Slots]:
        if not ids.size:
            return ids, ids
        wanted = ids[self._admission.admit(ids, counts=counts)]
        self._stats.refused += ids.size - wanted.size
        if not wanted.size:
            return wanted, wanted
        self._reserve(wanted.size)
        made = self._insert(wanted, step)
        kept = made >= 0
        self._stats.admitted += int(kept.sum())
        return wanted[kept], made[kept]

    def check_room(self, handles: Handles, step: int, others: int) -> int:
        """Return the memory of the rows that are missing and already admitted."""
        absent = handles[self.peek(handles, step) < 0]
        count = int(self._admission.admit(absent, counts=False).sum())
        more = self._slot_limit(count) - int(self._counts[kernel.SLOT_LIMIT])
        need = max(0, more) * (self._row_bytes + INDEX_BYTES_A_ROW)
        self._account.check(need, others)
        return need

    def _reserve(self, count: int) -> None:
        """Reserve slots for new rows before any is made."""
        limit = self._slot_limit(count)
        more = limit - int(self._counts[kernel.SLOT_LIMIT])
        if more <= 0:
            return
        self._ensure(limit)
        # Address space is reserved for all slots that the account could grant.
        self._account.take(more * (self._row_bytes + INDEX_BYTES_A_ROW))
        self._counts[kernel.SLOT_LIMIT] = limit

    def _slot_limit(self, count: int) -> int:
        """Return the number of slots needed for `count` new rows."""
        held = int(self._counts[kernel.NEXT_SLOT] - self._counts[kernel.FREE_SLOTS])
        limit = held + count
        if self._limits.evicts:
            limit = min(limit, self._max_rows)
        bounded = self._limits.bucket_rows or self._fixed_bytes
        if limit > self._max_rows and bounded:
            raise StoreFull(
                f"table {self._table!r} is full: {held} rows of at most {self._max_rows} here, "
                f"{count} more are requested; raise its max_bytes or the server's max_ssd_bytes, "
                "or give it an eviction",
                table=self._table,
                rows=held,
            )
        return limit

    def _insert(self, ids: Ids, step: int) -> Slots:
        made = np.empty(ids.size, np.int64)
        start, why = 0, kernel.DEAD_LIST_FULL
        while why != kernel.DONE:
            start, why = kernel.insert(
                ids,
                start,
                self._owned.local,
                self._heads,
                self._entries.array,
                self._sizes,
                self._limits.policy,
                step,
                self._oldest(step),
                self._limits.bucket_rows if self._limits.evicts else 0,
                self._clocks,
                self._counts,
                self._free.array,
                self._dead,
                made,
            )
            self._release_dead()
            if why in (kernel.NO_CLASS, kernel.NO_SLOT):
                # Ids chosen to collide in one bucket are refused; the table stays usable.
                made[start] = -1
                self._stats.refused += 1
                start += 1
        self._settle()
        return made

    def _release_dead(self) -> None:
        """Release regions that buckets have outgrown."""
        count = int(self._counts[kernel.DEAD])
        if not count:
            return
        for begin, length in self._dead[:count].tolist():
            if length >= _PAGE_ENTRIES:
                self._entries.release(begin * ENTRY_BYTES, (begin + length) * ENTRY_BYTES)
        self._counts[kernel.DEAD] = 0
        least = int(self._heads[:, kernel.CLASS].min())
        if least > self._least_class:
            self._entries.release(
                int(self._sizes[self._least_class, 1]) * ENTRY_BYTES,
                int(self._sizes[least, 1]) * ENTRY_BYTES,
            )
            self._least_class = least

    def _settle(self) -> None:
        rows = int(self._counts[kernel.SLOT_LIMIT]) * self._row_bytes
        self._account.settle(self._fixed_bytes + self.bytes + rows)

    def _oldest(self, step: int) -> int:
        return max(0, step - self._limits.ttl_steps) if self._limits.ttl_steps else 0

    def sweep(self, step: int) -> None:
        """Drop the expired rows of a few buckets."""
        oldest = self._oldest(step)
        if not oldest:
            return
        for _ in range(min(_SWEEP_BUCKETS, self._owned.count)):
            self._swept = (self._swept + 1) % self._owned.count
            kernel.evict(
                self._swept,
                0,
                self._limits.policy,
                oldest,
                self._heads,
                self._entries.array,
                self._clocks,
                self._counts,
                self._free.array,
            )

    def reset(self) -> None:
        """Remove all rows and clear the counters of admission."""
        self._entries.clear()
        self._free.clear()
        self._admission.reset()
        self._start()
        self._settle()

    def blocks(self, step: int) -> Iterator[tuple[Ids, Slots]]:
        """Yield the rows in order of their buckets."""
        used = self._heads[:, kernel.USED]
        blocks = (np.cumsum(used) - used) // _BLOCK_ROWS
        for block in np.unique(blocks[used > 0]):
            buckets = np.flatnonzero((blocks == block) & (used > 0))
            total = int(used[buckets].sum())
            ids, slots = np.empty(total, np.int64), np.empty(total, np.int64)
            count = kernel.entries_of(
                buckets, self._heads, self._entries.array, self._oldest(step), ids, slots
            )
            yield ids[:count], slots[:count]

    @property
    def row_count(self) -> int:
        """Number of rows."""
        return int(self._counts[kernel.ROWS])

    @property
    def slot_count(self) -> int:
        """Slots used since the last reset; their memory has been touched."""
        return int(self._counts[kernel.NEXT_SLOT])

    @property
    def bytes_a_row(self) -> float:
        """Bytes of an entry in a bucket at its highest load."""
        return INDEX_BYTES_A_ROW

    @property
    def bytes(self) -> int:
        """Memory of the entries, freed slots and counters."""
        entries = int(self._heads[:, kernel.CAPACITY].sum()) * ENTRY_BYTES
        free = int(self._counts[kernel.FREE_SLOTS]) * 4
        return entries + free + self._heads.nbytes + self._clocks.nbytes + self._admission.bytes

    @property
    def evicted(self) -> int:
        """Number of rows evicted or expired."""
        return self._evicted + int(self._counts[kernel.EVICTED])


def _size_classes(buckets: int, max_rows: int) -> NDArray[np.int64]:
    """Return capacity and beginning of each size class.

    Large classes grow by a quarter, so that at least three of five entries are used. The largest
    one holds twice the average of a bucket: hashes are even, so only chosen ids exceed it.
    """
    most = 3 * max_rows // max(buckets, 1) + 4096
    sizes, begin = [], 0
    capacities = list(_SMALL)
    while capacities[-1] < most:
        last = capacities[-1]
        # Half pages between one page and two: otherwise a bucket would double there.
        unit = _PAGE_ENTRIES if last >= 2 * _PAGE_ENTRIES else _PAGE_ENTRIES // 2
        capacities.append(-(-(last + last // 4) // unit) * unit)
    for capacity in capacities:
        begin = -(-begin // _PAGE_ENTRIES) * _PAGE_ENTRIES
        sizes.append((capacity, begin))
        begin += capacity * buckets
    return np.array(sizes, np.int64)

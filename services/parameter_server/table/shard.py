"""One server's shard of one table: index, rows, and their update by gradients."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

import numpy as np

from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.protos.dtype import numpy_dtype
from gradmesh.protos.errors import InvalidRequest, StoreFull
from gradmesh.protos.frame import Array
from gradmesh.protos.sharding import Ids, ShardMap
from gradmesh.sdk.table.gradients import BadGradients
from gradmesh.sdk.table.recipe import initializer_of, rule_of, table_seed
from gradmesh.sdk.table.schedule import schedule_of
from gradmesh.services.parameter_server.table.changes import Changes
from gradmesh.services.parameter_server.table.factory import TableResources, is_hash, make_parts
from gradmesh.services.parameter_server.table.index import Found, Handles, OwnedBuckets, Slots
from gradmesh.services.parameter_server.table.memory import Account, Budget
from gradmesh.services.parameter_server.table.rows import Layout
from gradmesh.services.parameter_server.table.stats import TableStats

# Elements drawn at once, so that temporary arrays stay small.
_CHUNK_ELEMENTS = 1 << 20


@final
class TableShard:
    """The rows of one table on one server.

    Each read and each change of rows is one locked operation. Between them callers hold handles,
    which stay valid over evictions (see `Index`).

    Args:
        spec: Specification of the table.
        shards: The shard map.
        shard: Number of this shard.
        budget: Memory of the server; unlimited by default.
        ssd_path: Directory of slab files, for tables with a hot set.
        max_ssd_bytes: Most bytes of the slab files of the table.

    Raises:
        StoreFull: It does not fit.
    """

    def __init__(
        self,
        spec: table_pb2.TableSpec,
        shards: ShardMap,
        shard: int,
        *,
        budget: Budget | None = None,
        ssd_path: Path | None = None,
        max_ssd_bytes: int = 1 << 36,
    ) -> None:
        self.spec = spec
        # Read at every call; fields of protobuf cost more than attributes.
        self.name: str = spec.name
        self.dim: int = spec.dim
        self.kind = "hash" if is_hash(spec) else "dense"
        self.steps = 0
        # Whether a lookup may evict rows or count towards admission, beyond making its own rows.
        bounded = spec.HasField("admission") or spec.HasField("eviction") or spec.max_bytes > 0
        self.counts_uses = self.kind == "hash" and bounded
        self.stats = TableStats()
        self._bad_gradients = BadGradients.of(spec.bad_gradients)
        self._initializer = initializer_of(spec.initializer)
        rule, self._lr = rule_of(spec.optimizer)
        self._rate = schedule_of(spec.schedule)
        self.dtype = numpy_dtype(spec.dtype)
        self._layout = Layout(spec.dim, self.dtype, rule)
        self._seed = table_seed(spec)
        # Guards rows, index, stats and steps.
        self._lock = threading.Lock()
        budget = budget or Budget(1 << 40)
        account = Account(budget, spec.name)
        resources = TableResources(account, ssd_path, max_ssd_bytes, self.stats, self._seed)
        owned = OwnedBuckets.of(shards, shard)
        self.buckets = owned.count
        self._index, self._rows = make_parts(spec, self._layout, owned, resources)
        aside = Account(budget, spec.name)
        self.changes = Changes(spec.name, self._lock, self._index, self._rows, aside)

    @property
    def row_count(self) -> int:
        """Number of rows here."""
        return self._index.row_count

    @property
    def bytes(self) -> int:
        """Memory of rows, optimizer state and index."""
        with self._lock:
            return self._rows.memory_bytes(self._index.slot_count) + self._index.bytes

    @property
    def file_bytes(self) -> int:
        """Bytes on disk."""
        return self._rows.file_bytes

    @property
    def evicted(self) -> int:
        """Number of rows evicted so far."""
        return self._index.evicted

    @property
    def expected_row_bytes(self) -> float:
        """Computed bytes of a row, with its state and its share of the index."""
        return self._layout.row_bytes + self._index.bytes_a_row

    def reset(self) -> None:
        """Reset all rows and the state of the optimizer."""
        with self._lock:
            self.changes.lose_all()
            self._index.reset()
            self._rows.clear()
            self.steps = 0

    def slots_of(self, ids: Array) -> Handles:
        """Return handles to the rows of ids; they own their memory.

        Raises:
            InvalidRequest: They are not int64 [n].
            IdOutOfRange: An id is outside the table.
            StaleShardMap: A row is on another server.
        """
        return self._index.handles_of(ids)

    def has_repeats(self, handles: Handles) -> bool:
        """Return whether a row appears twice."""
        return self._index.has_repeats(handles)

    @property
    def may_be_full(self) -> bool:
        """Whether it has its own limit at which it refuses new rows."""
        spec = self.spec
        return spec.hot_bytes > 0 or (spec.max_bytes > 0 and not spec.HasField("eviction"))

    def ids_of(self, handles: Handles) -> Ids:
        """Return the ids of handles."""
        return self._index.ids_of(handles)

    def read(self, handles: Handles, out: Array | None = None, *, peek: bool = False) -> Array:
        """Return a copy of rows; missing ones are made, or read as initial rows.

        Args:
            handles: Handles of the rows.
            out: [n, dim] to fill; new memory by default.
            peek: Whether to make no row and count no use.

        Raises:
            StoreFull: New rows do not fit.
        """
        if out is None:
            out = np.empty((handles.size, self.dim), self.dtype)
        with self._lock:
            if peek:
                slots = self._index.peek(handles, self.steps)
                missing = int((slots < 0).sum())
            else:
                slots, missing = self._use(handles, counts=True)
            self.stats.count_lookup(handles.size, missing)
            self._rows.read(slots, out, whole=not missing)
            if missing:
                absent = np.flatnonzero(slots < 0)
                if absent.size:
                    out[absent] = self._first_rows(self._index.ids_of(handles[absent]))
        return out

    def _use(self, handles: Handles, *, counts: bool) -> tuple[Slots, int]:
        self.changes.before_use(handles)
        found = self._index.use(handles, self.steps, counts=counts)
        if found.fresh_ids.size:
            self._begin_rows(found)
        return found.slots, found.missing

    def _begin_rows(self, found: Found) -> None:
        self.changes.made(found.fresh_slots)
        step = max(1, _CHUNK_ELEMENTS // self.dim)
        for begin in range(0, found.fresh_ids.size, step):
            part = slice(begin, begin + step)
            self._rows.write(found.fresh_slots[part], self._first_rows(found.fresh_ids[part]))

    def _first_rows(self, ids: Ids) -> Array:
        wide = np.empty((ids.size, self.spec.dim), self._layout.wide)
        self._initializer.fill(wide, ids, self._seed)
        return wide.astype(self.dtype, copy=False)

    def check_grads(self, handles: Handles, grads: Array, borrowed: bool = False) -> Array:
        """Return gradients after a check of shape and type and the table's `bad_gradients`.

        Args:
            handles: Handles of their rows.
            grads: The gradients.
            borrowed: Whether their memory is another process's, so that they are copied.

        Raises:
            InvalidRequest: They do not fit, or are not finite and the table rejects that.
        """
        name = self.name
        expected = (handles.size, self.dim)
        if grads.shape != expected or grads.dtype != self.dtype:
            raise InvalidRequest(
                f"table {name!r}: gradients must be {self.dtype} {expected}, not {grads.dtype} "
                f"{grads.shape}",
                table=name,
            )
        return self._bad_gradients.clean(grads, name, borrowed)

    def check_room(self, handles: Handles, others: int) -> int:
        """Return the memory for missing rows; check that it and `others` fit into the budget.

        Raises:
            StoreFull: They do not fit.
        """
        with self._lock:
            return self._index.check_room(handles, self.steps, others)

    def prepare(self, handles: Handles) -> None:
        """Make the rows of gradients outside any context; counts as a use.

        Raises:
            StoreFull: They do not fit.
        """
        if self.kind == "dense":
            # Its memory was reserved when it was made; `apply` marks rows as used.
            return
        with self._lock:
            self._use(handles, counts=True)

    def apply(self, handles: Handles, grads: Array, step: int | None = None) -> None:
        """Update rows by gradients that passed `check_grads`; no handle twice.

        A row that was evicted meanwhile is made again. A gradient whose id is not admitted is
        dropped.

        Args:
            handles: Handles of the rows.
            grads: Their gradients.
            step: Number of this step, from 1. In a run it is the run's: a step that touches no
                row of this shard counts, too, or rows would depend on the number of shards.
        """
        with self._lock:
            self.steps = self.steps + 1 if step is None else step
            try:
                slots, missing = self._use(handles, counts=False)
            except StoreFull:
                # A step is applied on all servers or none, and others have applied it: continue
                # without the new rows.
                slots, missing = self._index.peek(handles, self.steps), 1
            if missing and slots.size and slots.min() < 0:
                held = slots >= 0
                self.stats.dropped += int(slots.size - held.sum())
                handles, slots, grads = handles[held], slots[held], grads[held]
            self.changes.before_change(handles, slots)
            lr = self._rate(self._lr, self.steps - 1)
            self._rows.update(slots, grads, lr, self.steps)
            self.changes.before_sweep()
            self._index.sweep(self.steps)

    def count_staleness(self, steps: int) -> None:
        """Count the staleness of a gradient whose rows were read after `steps` steps."""
        with self._lock:
            self.stats.count_staleness(max(0, self.steps - steps))

    def blocks(self) -> Iterator[tuple[Ids, Array, dict[str, Array]]]:
        """Yield (ids, rows, optimizer state) of every used row, as copies.

        Each block is one locked operation; rows made or evicted between blocks may be left out.
        """
        with self._lock:
            blocks = list(self._index.blocks(self.steps))
        for ids, _ in blocks:
            with self._lock:
                slots = self._index.peek(self._index.handles_of(ids), self.steps)
                held = slots >= 0
                rows = np.empty((int(held.sum()), self.spec.dim), self.dtype)
                self._rows.read(slots[held], rows)
                state = self._rows.state(slots[held])
            yield ids[held], rows, state

    def load(self, ids: Ids, rows: Array, state: dict[str, Array] | None = None) -> None:
        """Set rows, and their optimizer state if given; missing rows are made.

        Raises:
            StoreFull: They do not fit; nothing changes.
        """
        handles = self.slots_of(ids)
        with self._lock:
            slots, _ = self._use(handles, counts=True)
            held = slots >= 0
            kept = None if state is None else {n: array[held] for n, array in state.items()}
            self._rows.write(slots[held], rows[held], kept)

    def freeze(self, snapshot: str, base: str, *, with_expired: bool = False) -> None:
        """Begin a snapshot of the current state; see `Changes` and `TableSnapshot`.

        Raises:
            ShardNotReady: Another snapshot is under way.
            BaseLost: The changes since the base are not recorded.
        """
        with self._lock:
            self.changes.check(snapshot, base)
            self.changes.freeze(snapshot, base, self.steps, with_expired=with_expired)

    def restore(self, arrays: dict[str, Array]) -> None:
        """Set rows, state and marks of a snapshot; rows without state get the initial state.

        Raises:
            InvalidRequest: The arrays do not fit; nothing changes.
            StoreFull: The rows do not fit.
        """
        with self._lock:
            self.changes.load(arrays, self.steps)

    def weights(self) -> Array:
        """Return the array of rows by slot, not a copy; for measurements."""
        return self._rows.weights()

    def close(self) -> None:
        """Close files."""
        self._rows.close()

    def layout(self) -> tuple[np.dtype[Any], dict[str, int]]:
        """Return the type of the optimizer state and the width of each of its slots."""
        return self._layout.wide, {slot.name: slot.width for slot in self._layout.slots}

"""One server's shard of one table: its rows, their places and how gradients change them."""

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
    """The rows of one table that live here.

    Reading and changing rows is one locked operation each. What callers keep between them are
    handles, see `Index`: they stay true whatever is evicted meanwhile.

    Args:
        spec: What the table is.
        shards: Which ids belong to whom.
        shard: Which shard this one is.
        budget: Memory it may take; without limit by default.
        ssd_path: Directory of slab files, for tables with a hot set.
        max_ssd_bytes: How big the slab files of the table may get.

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
        # Read at every call; protobuf's fields cost more than attributes.
        self.name: str = spec.name
        self.dim: int = spec.dim
        self.kind = "hash" if is_hash(spec) else "dense"
        self.steps = 0
        # Whether a lookup changes which rows there are, or will be, beyond making its own.
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
        """How many rows live here."""
        return self._index.row_count

    @property
    def bytes(self) -> int:
        """Memory of rows, optimizer state and index."""
        with self._lock:
            return self._rows.memory_bytes(self._index.slot_count) + self._index.bytes

    @property
    def file_bytes(self) -> int:
        """What lies on disk."""
        return self._rows.file_bytes

    @property
    def evicted(self) -> int:
        """Rows evicted so far."""
        return self._index.evicted

    @property
    def expected_row_bytes(self) -> float:
        """What the arithmetic says a row takes, with its state and its share of the index."""
        return self._layout.row_bytes + self._index.bytes_a_row

    def reset(self) -> None:
        """Put all rows and the optimizer back to the beginning."""
        with self._lock:
            self.changes.forget()
            self._index.reset()
            self._rows.clear()
            self.steps = 0

    def slots_of(self, ids: Array) -> Handles:
        """Return handles to the rows of ids; they own their memory.

        Raises:
            InvalidRequest: They are not int64 [n].
            IdOutOfRange: One is no row of the table.
            StaleShardMap: One lives on another server.
        """
        return self._index.handles_of(ids)

    @property
    def may_be_full(self) -> bool:
        """Whether it refuses new rows at a limit of its own."""
        spec = self.spec
        return spec.hot_bytes > 0 or (spec.max_bytes > 0 and not spec.HasField("eviction"))

    def ids_of(self, handles: Handles) -> Ids:
        """Return the ids of handles."""
        return self._index.ids_of(handles)

    def read(self, handles: Handles, out: Array | None = None, *, peek: bool = False) -> Array:
        """Return a copy of rows; those that are not there are made, or read as they would begin.

        Args:
            handles: Whose rows.
            out: [n, dim] to fill; new memory by default.
            peek: Whether to change nothing: no row is made, no use is counted.

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

    def check_grads(self, handles: Handles, grads: Array) -> Array:
        """Return gradients that fit rows, by the table's rule for those that are no numbers.

        Raises:
            InvalidRequest: They do not fit, or are not finite and the table refuses that.
        """
        name = self.name
        expected = (handles.size, self.dim)
        if grads.shape != expected or grads.dtype != self.dtype:
            raise InvalidRequest(
                f"table {name!r}: gradients must be {self.dtype} {expected}, not {grads.dtype} "
                f"{grads.shape}",
                table=name,
            )
        return self._bad_gradients.clean(grads, name)

    def check_room(self, handles: Handles, others: int) -> int:
        """Return the memory that making missing rows takes, beside what other tables will take.

        Raises:
            StoreFull: They will not fit.
        """
        with self._lock:
            return self._index.check_room(handles, self.steps, others)

    def prepare(self, handles: Handles) -> None:
        """Make the rows that gradients outside any context are for; counts as a use.

        Raises:
            StoreFull: They do not fit.
        """
        if self.kind == "dense":
            # Its memory was granted when it was made; `apply` does the rest.
            return
        with self._lock:
            self._use(handles, counts=True)

    def apply(self, handles: Handles, grads: Array, step: int | None = None) -> None:
        """Change rows by gradients that `check_grads` has passed; no handle twice.

        A gradient whose row was evicted meanwhile finds it made anew; one whose id is not admitted
        is dropped.

        Args:
            handles: Which rows.
            grads: Their gradients.
            step: Number of this step, from 1. In a run it is the run's: a step that touches no
                row of this shard must count here, too, or rows would depend on the shards' number.
        """
        with self._lock:
            self.steps = self.steps + 1 if step is None else step
            try:
                slots, missing = self._use(handles, counts=False)
            except StoreFull:
                # A step is applied everywhere or nowhere, and elsewhere it was: go on without.
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
        """Count how far a gradient is behind that was computed after so many steps."""
        with self._lock:
            self.stats.count_staleness(max(0, self.steps - steps))

    def blocks(self) -> Iterator[tuple[Ids, Array, dict[str, Array]]]:
        """Yield (ids, rows, optimizer state) of every row that was ever used, as copies.

        Each block is one locked operation; rows that come or go between blocks may be left out.
        """
        with self._lock:
            places = list(self._index.blocks(self.steps))
        for ids, _ in places:
            with self._lock:
                slots = self._index.peek(self._index.handles_of(ids), self.steps)
                held = slots >= 0
                rows = np.empty((int(held.sum()), self.spec.dim), self.dtype)
                self._rows.read(slots[held], rows)
                state = self._rows.state(slots[held])
            yield ids[held], rows, state

    def load(self, ids: Ids, rows: Array, state: dict[str, Array] | None = None) -> None:
        """Set rows, and their optimizer state if given, whether they existed or not.

        Raises:
            StoreFull: They do not fit; nothing is changed.
        """
        handles = self.slots_of(ids)
        with self._lock:
            slots, _ = self._use(handles, counts=True)
            held = slots >= 0
            kept = None if state is None else {n: array[held] for n, array in state.items()}
            self._rows.write(slots[held], rows[held], kept)

    def freeze(self, snapshot: str, base: str) -> None:
        """Begin to keep the state of this moment; see `Changes`.

        Raises:
            ShardNotReady: Another snapshot is under way.
            BaseLost: What changed since the base is not known.
        """
        with self._lock:
            self.changes.check(snapshot, base)
            self.changes.freeze(snapshot, base, self.steps)

    def restore(self, arrays: dict[str, Array]) -> None:
        """Set rows, state and marks, as a snapshot has them; rows alone begin with fresh state.

        Raises:
            InvalidRequest: The arrays do not fit; nothing is changed.
            StoreFull: The rows do not fit.
        """
        with self._lock:
            self.changes.load(arrays, self.steps)

    def weights(self) -> Array:
        """Return the memory of the rows by slot, for measurements; it changes under one's hands."""
        return self._rows.weights()

    def close(self) -> None:
        """Let go of files."""
        self._rows.close()

    def layout(self) -> tuple[np.dtype[Any], dict[str, int]]:
        """Return the type of the optimizer state and the width of each of its parts."""
        return self._layout.wide, {slot.name: slot.width for slot in self._layout.slots}

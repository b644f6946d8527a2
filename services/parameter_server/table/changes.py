"""Tracks the changes of a table, for the snapshot being read and for the next one."""

import logging
import threading
from collections.abc import Callable
from typing import final

import numpy as np
from numpy.typing import NDArray

from gradmesh.engine.kernels import has_repeats
from gradmesh.protos.errors import (
    BaseLost,
    InvalidRequest,
    ReshardAborted,
    ShardNotReady,
    SnapshotLost,
    StoreFull,
)
from gradmesh.protos.frame import Array
from gradmesh.protos.sharding import Ids, buckets_of
from gradmesh.services.parameter_server.table.index import Handles, Index, Slots
from gradmesh.services.parameter_server.table.memory import Account
from gradmesh.services.parameter_server.table.rows import Rows
from gradmesh.services.parameter_server.table.scan import Marks, scan_of
from gradmesh.services.parameter_server.table.table_snapshot import Block, SlotSet, TableSnapshot

# Recorded ids before repeated ones are removed.
_RECORDED = 1 << 20


@final
class MigrationReader:
    """Reads the rows of a table that migrate to other servers.

    Args:
        table: Name of the table.
        lock: Lock of the table.
        index: Index of the table.
        rows: Rows of the table.
    """

    def __init__(self, table: str, lock: threading.Lock, index: Index, rows: Rows) -> None:
        self._table = table
        self._lock = lock
        self._index = index
        self._rows = rows
        self._scan = scan_of(index)
        # Ids changed since the last `take_changed`; None while changes are not recorded.
        self._changed: list[Ids] | None = None
        self._count = 0
        self._lost = False

    @property
    def is_followed(self) -> bool:
        """Whether changes are recorded."""
        return self._changed is not None

    def record_change(self, ids: Ids) -> None:
        """Record rows that change. Called under the table's lock."""
        if self._changed is None:
            return
        self._changed.append(ids.copy())
        self._count += ids.size
        if self._count > _RECORDED:
            self._changed = [np.unique(np.concatenate(self._changed))]
            # Deduplicate again after at least as many further ids.
            self._count = min(0, _RECORDED - self._changed[0].size)

    def lose_all(self) -> None:
        """Record that all rows are about to be removed. Called under the table's lock."""
        self._lost = self._changed is not None

    def follow(self) -> None:
        """Start to record changes."""
        with self._lock:
            self._changed, self._count, self._lost = [], 0, False

    def stop(self) -> None:
        """Stop recording changes."""
        with self._lock:
            self._changed, self._lost = None, False

    def take_changed(self) -> Ids:
        """Return the ids of rows changed since the last call, each once.

        Raises:
            ReshardAborted: All rows were replaced meanwhile.
        """
        with self._lock:
            if self._lost:
                raise ReshardAborted(
                    f"table {self._table!r} was reset or restored while its rows migrated; "
                    "scale again when that has ended",
                    table=self._table,
                )
            changed, self._changed, self._count = self._changed or [], [], 0
        return np.unique(np.concatenate(changed)) if changed else _NO_IDS

    def rows_of(self, ids: Ids) -> Block:
        """Return rows and their state; ids without a row are left out."""
        with self._lock:
            slots = self._index.peek(self._index.handles_of(ids), 0)
            held = slots >= 0
            return self._read(ids[held], slots[held], None)

    @property
    def pieces(self) -> int:
        """Number of pieces."""
        return self._scan.pieces

    def piece(self, number: int, wanted: NDArray[np.bool_]) -> Block:
        """Return the rows of a piece that are in wanted buckets, with state and marks.

        Includes expired rows that are not removed yet: they count towards the limit of a bucket.

        Args:
            number: Number of the piece.
            wanted: For each bucket, whether its rows are wanted.
        """
        with self._lock:
            ids, slots, marks = self._scan.piece(number, 0)
            kept = wanted[buckets_of(ids)]
            return self._read(ids[kept], slots[kept], marks[kept])

    def memory(self, wanted: NDArray[np.bool_]) -> Block:
        """Return the state per bucket of wanted buckets; empty if there is none."""
        with self._lock:
            found = self._scan.bucket_state()
        if not found:
            return {}
        kept = wanted[found["buckets"]]
        return {name: array[kept] for name, array in found.items()} if kept.any() else {}

    def _read(self, ids: Ids, slots: Slots, marks: Marks | None) -> Block:
        if not ids.size:
            return {}
        rows = np.empty((ids.size, self._rows.layout.dim), self._rows.layout.dtype)
        self._rows.read(slots, rows)
        block: Block = {"ids": ids.copy(), "rows": rows}
        if marks is not None and self._scan.evicts:
            block["marks"] = marks.copy()
        return block | {f"state.{n}": a for n, a in self._rows.state(slots).items()}


_log = logging.getLogger(__name__)

_NO_IDS: Ids = np.empty(0, np.int64)


@final
class Changes:
    """Called before every change of a table, under the table's lock.

    Args:
        table: Name of the table.
        lock: Lock of the table.
        index: Index of the table.
        rows: Rows of the table.
        account: Memory for the rows that a snapshot copies before they change.

    Attributes:
        migration: Reads rows that migrate to other servers.
    """

    def __init__(
        self, table: str, lock: threading.Lock, index: Index, rows: Rows, account: Account
    ) -> None:
        self._table = table
        self._account = account
        self._lock = lock
        self._index = index
        self._rows = rows
        self._scan = scan_of(index)
        self.migration = MigrationReader(table, lock, index, rows)
        self._snapshot: TableSnapshot | None = None
        # Slots changed since the snapshot under way, and since the last stored one.
        self._since_snapshot: SlotSet | None = None
        self._base = ""
        self._since_base: SlotSet | None = None

    def before_use(self, handles: Handles) -> None:
        """Prepare for a lookup that may make rows."""
        if self._snapshot is not None:
            self._preserve(lambda held: held.before_use(handles))

    def made(self, slots: Slots) -> None:
        """Record new rows, before their first write."""
        if not slots.size:
            return
        if self._snapshot is not None:
            self._snapshot.leave_out(slots)
        self._record_change(slots)

    def before_change(self, handles: Handles, slots: Slots) -> None:
        """Prepare for a change of rows."""
        if self._snapshot is not None:
            self._preserve(lambda held: held.before_change(self._index.ids_of(handles), slots))
        if self.migration.is_followed:
            self.migration.record_change(self._index.ids_of(handles))
        self._record_change(slots)

    def before_sweep(self) -> None:
        """Prepare for the removal of expired rows."""
        if self._snapshot is not None:
            self._preserve(lambda held: held.before_drop(self._scan.swept_next()))

    def _preserve(self, change: Callable[[TableSnapshot], object]) -> None:
        """Copy rows into the snapshot before they change; without memory the snapshot is lost."""
        assert self._snapshot is not None
        try:
            change(self._snapshot)
        except StoreFull as error:
            _log.warning("snapshot lost for want of memory", extra={"error": error.message})
            self._end_snapshot()

    def _end_snapshot(self) -> None:
        self._snapshot = self._since_snapshot = None
        self._account.settle(0)

    def lose_all(self) -> None:
        """Prepare for the removal of all rows: the snapshot under way and the base are lost."""
        self.migration.lose_all()
        self._end_snapshot()
        self._since_base = None
        self._base = ""

    def _record_change(self, slots: Slots) -> None:
        for changed in (self._since_snapshot, self._since_base):
            if changed is not None:
                changed.add(slots)

    def check(self, snapshot: str, base: str) -> None:
        """Raise unless a snapshot may begin.

        Raises:
            ShardNotReady: Another one is under way.
            BaseLost: The changes since the base are not recorded.
        """
        if self._snapshot is not None and self._snapshot.name != snapshot:
            raise ShardNotReady(
                f"table {self._table!r} is being copied by another checkpoint; ask again",
                table=self._table,
            )
        if base and base != self._base:
            raise BaseLost(
                f"table {self._table!r}: the changes since checkpoint {base} are not recorded, "
                f"the last one stored is {self._base or 'none'}; make a full checkpoint",
                table=self._table,
                base=base,
            )

    def freeze(self, snapshot: str, base: str, steps: int, *, with_expired: bool = False) -> None:
        """Begin a snapshot; `check` has passed. Called under the table's lock."""
        scope = self._since_base.copy() if base and self._since_base is not None else None
        limit = self._index.slot_count
        self._snapshot = TableSnapshot(
            snapshot,
            self._scan,
            self._rows,
            limit,
            steps,
            scope,
            self._account,
            with_expired=with_expired,
        )
        self._since_snapshot = SlotSet(limit)

    def read(self, snapshot: str, piece: int) -> Block | None:
        """Return a piece of the snapshot, None after the last; each can be read once.

        Raises:
            SnapshotLost: The snapshot does not exist.
        """
        with self._lock:
            return self._own(snapshot).read(piece)

    def thaw(self, snapshot: str, stored: bool) -> None:
        """End a snapshot; if it was stored, the next one may be based on it."""
        with self._lock:
            if self._snapshot is None or self._snapshot.name != snapshot:
                if stored and self._base != snapshot:
                    raise self._lost(snapshot)
                return
            if stored:
                self._base, self._since_base = snapshot, self._since_snapshot
            self._end_snapshot()

    def steps(self, snapshot: str) -> int:
        """Return the steps applied at the moment of a snapshot."""
        with self._lock:
            return self._own(snapshot).steps

    def _own(self, snapshot: str) -> TableSnapshot:
        if self._snapshot is None or self._snapshot.name != snapshot:
            raise self._lost(snapshot)
        return self._snapshot

    def _lost(self, snapshot: str) -> SnapshotLost:
        return SnapshotLost(
            f"table {self._table!r} has no snapshot {snapshot}: a run began, the server restarted, "
            "it was not read for too long, or memory for rows that changed meanwhile was short; "
            "begin again, with a higher max_store_bytes if necessary",
            table=self._table,
            snapshot=snapshot,
        )

    def load(self, arrays: Block, steps: int) -> Slots:
        """Set rows with their state and marks; return their slots. Called under the table's lock.

        Raises:
            InvalidRequest: The arrays do not fit; nothing changes.
            StoreFull: The rows do not fit.
        """
        if "buckets" in arrays:
            self._scan.load_bucket_state(arrays)
            return _NO_IDS
        ids = arrays.get("ids", _NO_IDS)
        if has_repeats(ids):
            raise InvalidRequest(
                f"table {self._table!r}: ids must not repeat among rows to set", table=self._table
            )
        handles = self._index.handles_of(ids)
        state = self._checked_state(ids, arrays)
        self.before_use(handles)
        slots, fresh = self._scan.insert(ids, steps)
        self.made(fresh)
        self.before_change(handles, slots)
        self._rows.write(slots, arrays["rows"], state)
        if "marks" in arrays:
            self._scan.set_marks(ids, arrays["marks"].astype(np.uint32))
        return slots

    def _checked_state(self, ids: Ids, arrays: Block) -> dict[str, Array] | None:
        layout = self._rows.layout
        widths = {f"state.{slot.name}": slot.width for slot in layout.slots}
        given = {name for name in arrays if name.startswith("state.")}
        shapes = {"ids": (ids.size,), "rows": (ids.size, layout.dim), "marks": (ids.size,)}
        shapes |= {name: (ids.size, width) for name, width in widths.items()}
        dtypes = {"rows": layout.dtype} | dict.fromkeys(widths, layout.wide)
        wrong = [
            name
            for name, array in arrays.items()
            if array.shape != shapes.get(name) or array.dtype != dtypes.get(name, array.dtype)
        ]
        if wrong or "rows" not in arrays or given not in (set(), set(widths)):
            raise InvalidRequest(
                f"table {self._table!r}: {', '.join(wrong or sorted(arrays))} do not fit its "
                f"rows of {layout.dim} {layout.dtype} and their optimizer's state",
                table=self._table,
            )
        return {n.removeprefix("state."): arrays[n] for n in widths} if given else None

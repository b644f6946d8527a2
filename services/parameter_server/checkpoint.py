"""Checkpoints on a server: snapshots of its tables, and restores into them."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import final

from gradmesh.protos.errors import InvalidRequest, ShardNotReady, SnapshotLost
from gradmesh.protos.frame import Array
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2 as pb
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.services.parameter_server.contexts import Contexts
from gradmesh.services.parameter_server.log.log import Log, append_lock_of
from gradmesh.services.parameter_server.log.record import (
    AnyRecord,
    RestoreBegun,
    RestoreEnded,
    RowsLoaded,
)
from gradmesh.services.parameter_server.run import Run
from gradmesh.services.parameter_server.snapshots import Owner, Snapshots
from gradmesh.services.parameter_server.steps import Steps
from gradmesh.services.parameter_server.table import TableShard

_MAX_ENDED = 64


@final
class Restores:
    """The restores under way; a newer restore of a table replaces an older one."""

    def __init__(self) -> None:
        self._tables: dict[str, tuple[str, ...]] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()

    def has(self, restore: str) -> bool:
        """Return whether a restore has begun, ended ones included."""
        return restore in self._tables or restore in self._ended

    def begin(self, restore: str, tables: Sequence[str]) -> None:
        """Close tables for lookups.

        Raises:
            InvalidRequest: The name or the tables are missing.
        """
        if not restore or not tables:
            raise InvalidRequest("a restore needs a name and tables; set both")
        self.drop(tables)
        self._tables[restore] = tuple(tables)

    def under_way(self) -> dict[str, list[str]]:
        """Return the tables of each restore that has not ended."""
        return {name: list(tables) for name, tables in self._tables.items()}

    def drop(self, tables: Sequence[str]) -> None:
        """Drop the restores of tables that are reset."""
        for name in [n for n, held in self._tables.items() if set(held) & set(tables)]:
            del self._tables[name]

    def check_open(self, table: str) -> None:
        """Raise if a table is being restored.

        Raises:
            ShardNotReady: It is being restored.
        """
        # Called for every lookup, so without a lock: the list is a private copy.
        if self._tables and any(table in held for held in list(self._tables.values())):
            raise ShardNotReady(
                f"table {table!r} is being restored; ask again, and if the restore was abandoned, "
                "restore it again or reset it with `gradmesh table reset`",
                table=table,
            )

    def check_own(self, restore: str, table: str) -> None:
        """Raise unless a restore may fill a table.

        Raises:
            SnapshotLost: The restore has ended.
        """
        if table not in self._tables.get(restore, ()):
            raise SnapshotLost(
                f"restore {restore} of table {table!r} has ended: the server restarted, or another "
                "restore or run began; begin again",
                restore=restore,
            )

    def end(self, restore: str) -> tuple[str, ...]:
        """Open the tables; return them, none if they were opened before.

        Raises:
            SnapshotLost: The restore does not exist.
        """
        if restore in self._ended:
            return ()
        if restore not in self._tables:
            raise SnapshotLost(
                f"restore {restore} does not exist here; begin again", restore=restore
            )
        self._ended[restore] = None
        if len(self._ended) > _MAX_ENDED:
            self._ended.popitem(last=False)
        return self._tables.pop(restore)


@final
class Checkpointing:
    """Snapshots and restores of a store.

    Args:
        steps: Steps of the store; no step is applied while their lock is held.
        find: Returns a table, even if it is being restored.
        check_epoch: Raises StaleShardMap unless the caller's map is current.
        contexts: Released when rows are replaced.
        log: Where restores are written; None for none.
        on_rows_changed: Called with a table any row of which may have changed.
    """

    def __init__(
        self,
        steps: Steps,
        find: Callable[[str, Deadline], TableShard],
        check_epoch: Callable[[int, Deadline], None],
        contexts: Contexts,
        log: Log | None = None,
        on_rows_changed: Callable[[str], object] = lambda table: None,
    ) -> None:
        self._on_rows_changed = on_rows_changed
        self._steps = steps
        self._changed = steps.changed
        self._find = find
        self._check_epoch = check_epoch
        self._contexts = contexts
        self._log = log
        self.snapshots = Snapshots()
        self.restores = Restores()

    def reach(self, run: Run) -> None:
        """Freeze the snapshots that wait for the applied step; called under the steps' lock."""
        self.snapshots.reach(run)

    def _open_table(self, name: str, deadline: Deadline) -> TableShard:
        with self._changed:
            self.restores.check_open(name)
        return self._find(name, deadline)

    def begin_snapshot(
        self,
        name: str,
        tables: Sequence[str],
        step: int | None,
        base: str,
        deadline: Deadline,
        owner: Owner = ("", 0),
    ) -> pb.BeginSnapshotResponse:
        """Freeze tables together, now or when the run has applied `step` steps.

        Raises:
            ShardNotReady: Another snapshot or a restore of a table is under way.
            BaseLost: The changes since the base are not recorded.
        """
        held = [self._open_table(table, deadline) for table in tables]
        with self._changed:
            found = self.snapshots.begin(name, held, step, base, self._steps.run, owner)
        found.open_contexts = self._contexts.open_count()
        return found

    def begin_restore(self, name: str, tables: Sequence[str], deadline: Deadline) -> None:
        """Empty tables and close them until `end_restore`."""
        held = [self._find(table, deadline) for table in tables]
        with self._changed, append_lock_of(self._log):
            if self.restores.has(name):
                return
            self.restores.begin(name, tables)
            self._log_record(RestoreBegun(name, list(tables)))
            self._contexts.release_all()
            for table in held:
                table.reset()
                self._on_rows_changed(table.name)

    def load_rows(
        self, restore: str, name: str, epoch: int, arrays: dict[str, Array], deadline: Deadline
    ) -> None:
        """Set rows of a table, in a restore or outside.

        Raises:
            SnapshotLost: The restore has ended.
            InvalidRequest: The arrays do not fit; nothing changes.
        """
        self._check_epoch(epoch, deadline)
        if restore:
            with self._changed:
                self.restores.check_own(restore, name)
        table = self._find(name, deadline) if restore else self._open_table(name, deadline)
        with append_lock_of(self._log):
            table.restore(arrays)
            self._log_record(RowsLoaded(name, list(arrays)), list(arrays.values()))
        # Prefetched rows of the table are sent again with their refresh.
        self._on_rows_changed(name)

    def end_restore(self, name: str, steps: Sequence[int], deadline: Deadline) -> None:
        """Open restored tables.

        Raises:
            SnapshotLost: The restore does not exist.
        """
        with self._changed, append_lock_of(self._log):
            opened = self.restores.end(name)
            if opened:
                self._log_record(RestoreEnded(name, list(steps)))
            for table, applied in zip(opened, steps, strict=False):
                self._find(table, deadline).steps = applied

    def _log_record(self, record: AnyRecord, arrays: Sequence[Array] = ()) -> None:
        if self._log is not None:
            self._log.append(record, arrays)

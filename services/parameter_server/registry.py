"""The registry of a server's tables, which makes new ones at first use."""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import final

import numpy as np

from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.protos.errors import ShardMismatch, ShardNotReady, StaleShardMap
from gradmesh.protos.sharding import BUCKETS, ShardMap
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.services.parameter_server.log.log import Log, append_lock_of
from gradmesh.services.parameter_server.log.record import TableMade
from gradmesh.services.parameter_server.table import Budget, TableShard
from gradmesh.services.parameter_server.table.index import Handles


@final
class TableRegistry:
    """Tables by name; a table is never removed.

    Args:
        name: Name of this server.
        describe: Returns a table's specification; called once per table.
        shard_map: Returns the current shard map.
        max_bytes: Memory that the tables may take together.
        ssd_path: Directory for rows that are not hot; None for none.
        max_ssd_bytes: Most bytes of it per table.
        log: Where new tables are written; None for none.
    """

    def __init__(
        self,
        name: str,
        describe: Callable[[str, Deadline], table_pb2.TableSpec],
        shard_map: Callable[[int | None, Deadline], ShardMap],
        *,
        max_bytes: int,
        ssd_path: Path | None,
        max_ssd_bytes: int,
        log: Log | None = None,
    ) -> None:
        self._name = name
        self._describe = describe
        self._shard_map = shard_map
        self._max_bytes = max_bytes
        self._budget = self.new_budget()
        self._ssd_path = ssd_path
        self._max_ssd_bytes = max_ssd_bytes
        self._log = log
        # Serialises the making of tables; single reads need no lock.
        self._making = threading.Lock()
        self._tables: dict[str, TableShard] = {}
        self.made: dict[str, TableMade] = {}

    def __getitem__(self, name: str) -> TableShard:
        """Return an existing table."""
        return self._tables[name]

    def all(self) -> list[TableShard]:
        """Return all existing tables."""
        return list(self._tables.values())

    def check_room(self, wanted: Sequence[tuple[TableShard, Handles]]) -> None:
        """Check that rows of several tables fit, before any is made.

        Raises:
            StoreFull: They do not fit; nothing was made.
        """
        growing = [(table, handles) for table, handles in wanted if table.kind == "hash"]
        # A single table makes all of its rows or none.
        if len(growing) < 2:
            return
        most = sum(handles.size * table.expected_row_bytes for table, handles in growing)
        if most <= self._budget.left and not any(table.may_be_full for table, _ in growing):
            return
        others = 0
        for table, handles in growing:
            others += table.check_room(handles, others)

    def find(self, name: str, deadline: Deadline) -> TableShard:
        """Return a table, made at first use.

        Raises:
            TableNotFound: The table does not exist.
            StoreFull: Its rows do not fit.
            ShardNotReady: Other tables are being made.
        """
        found = self._tables.get(name)
        if found is not None:
            return found
        spec = self._describe(name, deadline)
        self._shard_map(None, deadline)  # refreshed before the lock is held
        if not self._making.acquire(timeout=deadline.remaining_s()):
            raise ShardNotReady(f"{self._name} is busy making other tables", table=name)
        try:
            # Tables are added only under this lock, and no reshard replaces the map meanwhile.
            return self._tables.get(name) or self._make(spec, self._shard_map(None, deadline))
        finally:
            self._making.release()

    def _make(self, spec: table_pb2.TableSpec, shards: ShardMap) -> TableShard:
        if self._name not in shards.names:
            raise StaleShardMap(
                f"{self._name} holds no shard of map {shards.epoch}; fetch the shard map",
                epoch=shards.epoch,
            )
        record = TableMade(spec.SerializeToString(deterministic=True), self._owned(shards))
        with append_lock_of(self._log):
            made = self.revive(record)
            if self._log is not None:
                self._log.append(record)
        return made

    def _owned(self, shards: ShardMap) -> bytes:
        return np.packbits(shards.owned_by(self._name)).tobytes()

    def spec_of(self, name: str, deadline: Deadline) -> table_pb2.TableSpec:
        """Return a table's specification, even if the table was not made here.

        Raises:
            TableNotFound: The table does not exist.
        """
        found = self._tables.get(name)
        return self._describe(name, deadline) if found is None else found.spec

    def revive(self, record: TableMade) -> TableShard:
        """Make the table of a record, without rows; it replaces a table of its name."""
        made = self.build(record, self._budget)
        self._tables[made.name] = made
        self.made[made.name] = record
        return made

    def new_budget(self) -> Budget:
        """Return a budget of the memory that this server's tables may take."""
        return Budget(self._max_bytes, self._name)

    def replace(
        self, tables: Mapping[str, TableShard], made: Mapping[str, TableMade], budget: Budget
    ) -> None:
        """Replace all tables, with the budget that they were made from.

        Called while `paused`, or while no other thread uses the store.
        """
        self._tables, self.made, self._budget = dict(tables), dict(made), budget

    def paused(self) -> AbstractContextManager[object]:
        """Return a lock that prevents new tables; acquired before the log's append lock."""
        return self._making

    def build(self, record: TableMade, budget: Budget) -> TableShard:
        """Return the table of a record, without rows and not registered."""
        bits = np.unpackbits(np.frombuffer(record.owned, np.uint8), count=BUCKETS)
        # Only the buckets that are here matter to a table; all others belong to shard 1.
        shards = ShardMap(0, [self._name], [""], np.where(bits, 0, 1).astype(np.int32))
        return TableShard(
            table_pb2.TableSpec.FromString(record.spec),
            shards,
            0,
            budget=budget,
            ssd_path=self._ssd_path,
            max_ssd_bytes=self._max_ssd_bytes,
        )

    def check_owned(self, shards: ShardMap) -> None:
        """Check that the tables hold the buckets that a map assigns to this server.

        Raises:
            ShardMismatch: They hold other buckets.
        """
        if self._name not in shards.names:
            return
        owned = self._owned(shards)
        for name, record in self.made.items():
            if record.owned != owned:
                raise ShardMismatch(
                    f"{self._name} holds other buckets of table {name!r} than shard map "
                    f"{shards.epoch} assigns: its log is of a cluster with another number of "
                    "parameter servers; start as many as then, or restore a checkpoint into an "
                    "empty state folder",
                    worker=self._name,
                    table=name,
                )

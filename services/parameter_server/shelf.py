"""The tables that a server has made, and the making of new ones."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import final

from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.protos.errors import ShardNotReady, StaleShardMap
from gradmesh.protos.sharding import ShardMap
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.services.parameter_server.table import Budget, TableShard


@final
class Shelf:
    """Tables by name; one that is there stays there.

    Args:
        name: Name of this server.
        describe: Returns a table's specification; asked once a table.
        shard_map: Returns the current shard map.
        max_bytes: Memory that the tables may take together.
        ssd_path: Directory for rows that are not hot; None for none.
        max_ssd_bytes: How much of it each table may take.
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
    ) -> None:
        self._name = name
        self._describe = describe
        self._shard_map = shard_map
        self._budget = Budget(max_bytes, name)
        self._ssd_path = ssd_path
        self._max_ssd_bytes = max_ssd_bytes
        # One table is made at a time, beside everything else that goes on; single reads need none.
        self._making = threading.Lock()
        self._tables: dict[str, TableShard] = {}

    def __getitem__(self, name: str) -> TableShard:
        """Return a table that was made."""
        return self._tables[name]

    def all(self) -> list[TableShard]:
        """Return all tables that were made."""
        return list(self._tables.values())

    def find(self, name: str, deadline: Deadline) -> TableShard:
        """Return a table, made at first use.

        Raises:
            TableNotFound: There is no such table.
            StoreFull: Its rows do not fit.
            ShardNotReady: Other tables are being made.
        """
        found = self._tables.get(name)
        if found is not None:
            return found
        spec = self._describe(name, deadline)
        shards = self._shard_map(None, deadline)
        if not self._making.acquire(timeout=deadline.remaining_s()):
            raise ShardNotReady(f"{self._name} is busy making other tables", table=name)
        try:
            # Only here are tables added, so the look is good for the whole block.
            made = self._tables.get(name) or self._make(spec, shards)
            self._tables[name] = made
            return made
        finally:
            self._making.release()

    def _make(self, spec: table_pb2.TableSpec, shards: ShardMap) -> TableShard:
        if self._name not in shards.names:
            raise StaleShardMap(
                f"{self._name} holds no shard of map {shards.epoch}; fetch the shard map",
                epoch=shards.epoch,
            )
        return TableShard(
            spec,
            shards,
            list(shards.names).index(self._name),
            budget=self._budget,
            ssd_path=self._ssd_path,
            max_ssd_bytes=self._max_ssd_bytes,
        )

"""Refresh of prefetched rows: returns the rows that changed since they were read."""

from collections import Counter
from typing import Any, NamedTuple, final

import numpy as np

from gradmesh.protos.common.v1 import context_pb2
from gradmesh.protos.errors import InvalidRequest
from gradmesh.protos.frame import Array
from gradmesh.sdk.transport.call import ArrayAllocator
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.services.parameter_server.contexts import Contexts
from gradmesh.services.parameter_server.gate import Epochs, Gate, Kind
from gradmesh.services.parameter_server.open_context import Slots, TableLookup
from gradmesh.services.parameter_server.registry import TableRegistry
from gradmesh.services.parameter_server.steps import Steps
from gradmesh.services.parameter_server.table import TableShard
from gradmesh.services.parameter_server.versions import RowVersions
from gradmesh.services.parameter_server.writer import Writer


@final
class Refresher:
    """Refreshes prefetches.

    Args:
        registry: The tables.
        steps: The run.
        contexts: Where prefetches are stored.
        versions: When rows changed.
        writer: Reads rows of tables that count uses.
        epochs: The shard map.
        gate: Holds calls during a reshard.
    """

    def __init__(
        self,
        registry: TableRegistry,
        steps: Steps,
        contexts: Contexts,
        versions: RowVersions,
        writer: Writer,
        epochs: Epochs,
        gate: Gate,
    ) -> None:
        self._registry = registry
        self._steps = steps
        self._contexts = contexts
        self._versions = versions
        self._writer = writer
        self._epochs = epochs
        self._gate = gate

    def peek(
        self,
        source: context_pb2.ContextId,
        source_number: int,
        deadline: Deadline,
        *,
        epoch: int,
        mark: context_pb2.StepMark | None,
        since: int = 0,
        empty: ArrayAllocator = np.empty,
    ) -> tuple[list[Array], int]:
        """Return the rows of a prefetch that changed since, without moving it.

        Rows of tables with admission or eviction are left for the refresh, because no use counts
        yet.

        Returns:
            As `refresh`.

        Raises:
            InvalidRequest: The count is in the future.
            LookupNotFound: This server has not served that prefetch.
            StaleShardMap: The ids were routed with another map.
            StaleGeneration: The step mark is of another generation.
            StepPending: An earlier step did not complete in time.
        """
        self._epochs.check(epoch, deadline)
        if mark is not None:
            self._steps.wait_to_begin(mark, deadline, peek=True)
        with self._gate.passing(Kind.READS, deadline):
            self._epochs.recheck(epoch)
            # Before the rows are read: a change in between is sent with the refresh.
            count = self._count_after(since)
            ahead = self._contexts.find_prefetch(source, source_number)
            changed = _Changed()
            for part in ahead.parts:
                table = self._registry[part.table]
                changed.add(table, part.slots, self._positions(table, part, since or ahead.count))
            return changed.read(empty), count

    def refresh(
        self,
        source: context_pb2.ContextId,
        source_number: int,
        deadline: Deadline,
        *,
        epoch: int,
        context: context_pb2.ContextId | None,
        number: int,
        mark: context_pb2.StepMark | None,
        since: int = 0,
        empty: ArrayAllocator = np.empty,
    ) -> tuple[list[Array], int]:
        """Return the rows of a prefetch that changed since, and make it a lookup of its step.

        Args:
            source: The context of the prefetch.
            source_number: Number of the lookup in `source`.
            deadline: How long to wait for earlier steps.
            epoch: Epoch of the map that its ids were routed with.
            context: The context that will send gradients; None for reading only.
            number: Number of the lookup in `context`.
            mark: The step that the rows are for; None outside a run.
            since: The count of a peek; 0 for that of the prefetch.
            empty: Allocates memory for rows.

        Returns:
            For each dim and type of rows, the positions of the changed rows, counted through the
            tables of the lookup, and these rows; nothing if none changed since a peek. And the
            number of changes that these rows include.

        Raises:
            InvalidRequest: The count is in the future.
            LookupNotFound: This server has not served that prefetch.
            StaleShardMap: The ids were routed with another map.
            StaleGeneration: The step mark is of another generation.
            StepPending: An earlier step did not complete in time.
        """
        self._epochs.check(epoch, deadline)
        if mark is not None:
            self._steps.wait_to_begin(mark, deadline)
        with self._gate.passing(Kind.CHANGES, deadline):
            self._epochs.recheck(epoch)
            count = self._count_after(since)
            ahead = self._contexts.adopt(source, source_number, context, number)
            tables = [self._registry[part.table] for part in ahead.parts]
            for table, part in zip(tables, ahead.parts, strict=True):
                if not _has_lifetime(table):
                    self._writer.prepare(table, part.slots)
            if since and since == count and not any(map(_has_lifetime, tables)):
                return [], count
            changed = _Changed()
            for table, part in zip(tables, ahead.parts, strict=True):
                if _has_lifetime(table):
                    # All rows are read as in a first lookup.
                    rows = self._writer.read(table, part.slots)
                    changed.add(table, part.slots, np.arange(part.slots.size), rows)
                else:
                    changed.add(
                        table, part.slots, self._positions(table, part, since or ahead.count)
                    )
            return changed.read(empty), count

    def _count_after(self, since: int) -> int:
        """Return the current count of changes.

        Raises:
            InvalidRequest: `since` is in the future.
        """
        count = self._versions.count
        if since > count:
            raise InvalidRequest(
                f"since is {since}, but only {count} changes were made; send a returned count"
            )
        return count

    def _positions(self, table: TableShard, part: TableLookup, since: int) -> Array:
        """Return the positions of rows that changed after a count, without counting a use."""
        if _has_lifetime(table):
            return np.empty(0, np.int64)
        return self._versions.since(since, part.table, part.slots)


class _ChangedRows(NamedTuple):
    """Changed rows of one table: slots, positions among rows of their kind, values if read."""

    table: TableShard
    slots: Slots
    positions: Array
    rows: Array | None


@final
class _Changed:
    """Changed rows of several tables, grouped by dim and type."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[int, Any], list[_ChangedRows]] = {}
        self._sizes: Counter[tuple[int, Any]] = Counter()

    def add(
        self, table: TableShard, slots: Slots, positions: Array, rows: Array | None = None
    ) -> None:
        """Add the changed rows of one table.

        Args:
            table: The table.
            slots: All rows that were looked up in it.
            positions: Positions of the changed ones.
            rows: Their values; None to read them.
        """
        kind = table.dim, table.dtype
        some = _ChangedRows(table, slots[positions], positions + self._sizes[kind], rows)
        self._kinds.setdefault(kind, []).append(some)
        self._sizes[kind] += slots.size

    def read(self, empty: ArrayAllocator) -> list[Array]:
        """Return the positions and the rows of each kind."""
        arrays: list[Array] = []
        for (dim, dtype), every in self._kinds.items():
            positions = np.concatenate([some.positions for some in every])
            rows = empty((positions.size, dim), dtype)
            at = 0
            for some in every:
                if some.slots.size:
                    out = rows[at : at + some.slots.size]
                    if some.rows is None:
                        some.table.read(some.slots, out, peek=True)
                    else:
                        out[:] = some.rows
                    at += some.slots.size
            arrays += (positions, rows)
        return arrays


def _has_lifetime(table: TableShard) -> bool:
    """Return whether lookups add or remove rows of a table."""
    return table.spec.HasField("admission") or table.spec.HasField("eviction")

"""Lookups made ahead of their step, brought up to date."""

from collections import Counter
from typing import Any, NamedTuple, final

import numpy as np

from gradmesh.protos.common.v1 import context_pb2
from gradmesh.protos.errors import InvalidRequest
from gradmesh.protos.frame import Array
from gradmesh.sdk.transport.call import ArrayAllocator
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.services.parameter_server.contexts import Contexts, Slots, TableLookup
from gradmesh.services.parameter_server.gate import Epochs, Gate, Kind
from gradmesh.services.parameter_server.registry import TableRegistry
from gradmesh.services.parameter_server.steps import Steps
from gradmesh.services.parameter_server.table import TableShard
from gradmesh.services.parameter_server.versions import RowVersions
from gradmesh.services.parameter_server.writer import Writer


@final
class Refresher:
    """Knows what changed since a lookup was made ahead.

    Args:
        registry: The tables.
        steps: The run.
        contexts: Where lookups are remembered.
        versions: When rows changed.
        writer: Reads rows that come and go.
        epochs: The shard map.
        gate: What is let in while buckets change hands.
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
        """Return what changed since a lookup was made ahead, and leave it there.

        Rows of tables that count uses are left for the refresh: nothing is used yet.

        Returns:
            As `refresh`, and the count of changes that these rows have seen.

        Raises:
            InvalidRequest: There is no such count.
            LookupNotFound: There was no such lookup here.
            StaleShardMap: The ids were routed with another map.
            StaleGeneration: The mark is of another generation.
            StepPending: An earlier step did not complete in time.
        """
        self._epochs.check(epoch, deadline)
        if mark is not None:
            self._steps.wait_to_begin(mark, deadline, peek=True)
        with self._gate.passing(Kind.READS, deadline):
            self._epochs.recheck(epoch)
            # Before the rows are read: what changes in between comes with the refresh.
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
        """Return what changed since a lookup was made ahead, and make it one of its step.

        Args:
            source: The context it was made in.
            source_number: Its number there.
            deadline: When to stop waiting for earlier steps.
            epoch: Of the map that its ids were routed with.
            context: The context that will send gradients; None for reading only.
            number: The lookup's number in that.
            mark: The step the rows are for; None outside a run.
            since: The count of a peek; 0 for the lookup's own.
            empty: Gives memory for rows.

        Returns:
            For each dim and type of rows, the positions of the changed rows, counted through the
            tables of the lookup, and these rows; nothing if none changed since a peek. And the
            number of changes that these rows include.

        Raises:
            InvalidRequest: There is no such count.
            LookupNotFound: There was no such lookup here.
            StaleShardMap: The ids were routed with another map.
            StaleGeneration: The mark is of another generation.
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
                if not _comes_and_goes(table):
                    self._writer.prepare(table, part.slots)
            if since and since == count and not any(map(_comes_and_goes, tables)):
                return [], count
            changed = _Changed()
            for table, part in zip(tables, ahead.parts, strict=True):
                if _comes_and_goes(table):
                    # All are read as if for the first time.
                    rows = self._writer.read(table, part.slots)
                    changed.add(table, part.slots, np.arange(part.slots.size), rows)
                else:
                    changed.add(
                        table, part.slots, self._positions(table, part, since or ahead.count)
                    )
            return changed.read(empty), count

    def _count_after(self, since: int) -> int:
        """Return the count of now.

        Raises:
            InvalidRequest: A count that was never given out is said to lie before it.
        """
        count = self._versions.count
        if since > count:
            raise InvalidRequest(f"since is {since}, and there were {count} changes so far")
        return count

    def _positions(self, table: TableShard, part: TableLookup, since: int) -> Array:
        """Return the positions of rows that changed after a count; no use of rows counts here."""
        if _comes_and_goes(table):
            return np.empty(0, np.int64)
        return self._versions.since(since, part.table, part.slots)


class _Some(NamedTuple):
    """Changed rows of one table: which, where among all rows of their kind, and what was read."""

    table: TableShard
    slots: Slots
    positions: Array
    rows: Array | None


@final
class _Changed:
    """Rows of several tables that changed, together with others of their dim and type."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[int, Any], list[_Some]] = {}
        self._sizes: Counter[tuple[int, Any]] = Counter()

    def add(
        self, table: TableShard, slots: Slots, positions: Array, rows: Array | None = None
    ) -> None:
        """Take changed rows of one table.

        Args:
            table: The table.
            slots: All rows that were looked up in it.
            positions: Which of them changed.
            rows: These; None to read them.
        """
        kind = table.dim, table.dtype
        some = _Some(table, slots[positions], positions + self._sizes[kind], rows)
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


def _comes_and_goes(table: TableShard) -> bool:
    """Tell whether rows of a table appear and vanish without a step."""
    return table.spec.HasField("admission") or table.spec.HasField("eviction")

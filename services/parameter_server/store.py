"""The rows of one server and the rules by which they change. No network in here.

Lookups of different tables run side by side; a table's rows are locked while they are read or
changed. In a run, a lookup for step t waits until every step before t is applied here.
"""

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import final

import numpy as np

from gradmesh.engine.kernels import unique_inverse
from gradmesh.protos.common.v1 import context_pb2
from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.protos.errors import (
    Draining,
    InvalidRequest,
    StaleGeneration,
    StaleShardMap,
    StepPending,
)
from gradmesh.protos.frame import Array
from gradmesh.protos.sharding import ShardMap
from gradmesh.sdk.transport.call import Empty
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.services.parameter_server.changes import Changes
from gradmesh.services.parameter_server.contexts import Ahead, Contexts, Gradient, Part
from gradmesh.services.parameter_server.copies import Copies
from gradmesh.services.parameter_server.pushes import Pushes
from gradmesh.services.parameter_server.run import Run, merge
from gradmesh.services.parameter_server.shelf import Shelf
from gradmesh.services.parameter_server.table import TableShard

_log = logging.getLogger(__name__)

# Time to send the answer before the caller's deadline passes.
_MARGIN_S = 0.1


@final
class Store:
    """All tables of one server.

    Args:
        name: Name of this server.
        describe: Returns a table's specification; asked once a table.
        shard_map: Returns the current shard map; given the epoch that a caller used, if any.
        max_bytes: Memory that the tables may take together.
        max_waiters: Lookups that may wait for a step at once, so that they cannot keep the very
            gradients out that they wait for.
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
        max_waiters: int,
        ssd_path: Path | None = None,
        max_ssd_bytes: int = 1 << 36,
    ) -> None:
        self._name = name
        self._shard_map = shard_map
        self._max_waiters = max_waiters
        self.contexts = Contexts()
        self._pushes = Pushes()
        self._changes = Changes()
        self._tables = Shelf(
            name,
            describe,
            shard_map,
            max_bytes=max_bytes,
            ssd_path=ssd_path,
            max_ssd_bytes=max_ssd_bytes,
        )
        # Guards all below; notified when a step is applied or a run ends.
        self._changed = threading.Condition()
        self._run = Run()
        self.copies = Copies(self._changed, self._tables.find, self._check_epoch, self.contexts)
        self._fence = 0
        self._waiters = 0
        self._closed = False

    def table(self, name: str, deadline: Deadline) -> TableShard:
        """Return this server's shard of a table, made at first use.

        Raises:
            TableNotFound: There is no such table.
            StoreFull: Its rows do not fit.
            ShardNotReady: It is being restored.
        """
        self.copies.restores.check_open(name)
        return self._tables.find(name, deadline)

    def start_run(
        self, generation: int, world_size: int, tables: Sequence[str], deadline: Deadline
    ) -> None:
        """Begin a run with the tables at their initial rows; once a generation.

        Raises:
            StaleGeneration: A newer generation began.
            InvalidRequest: It began with another number of trainers, or there are none.
        """
        if world_size < 1 or generation < 1:
            raise InvalidRequest(
                f"a run of generation {generation} with {world_size} trainers; both begin at 1",
                generation=generation,
                world_size=world_size,
            )
        if self._has_begun(generation, world_size):
            return
        reset = [self._tables.find(name, deadline) for name in tables]
        with self._changed:
            if self._has_begun(generation, world_size):
                return
            self.contexts.release_all()
            self.copies.restores.drop(tables)
            for table in reset:
                table.reset()
                self._changes.forget(table.spec.name)
            self._run = self.copies.run = Run(generation, world_size)
            self._changed.notify_all()
        _log.info("run started", extra={"generation": generation, "tables": len(reset)})

    def _has_begun(self, generation: int, world_size: int) -> bool:
        with self._changed:
            current = max(self._run.generation, self._fence)
            if generation < current:
                raise StaleGeneration(
                    f"generation {generation} is over, {current} is current; join again",
                    generation=generation,
                    current=current,
                )
            if generation != self._run.generation:
                return False
            if world_size != self._run.world_size:
                raise InvalidRequest(
                    f"generation {generation} began with {self._run.world_size} trainers, not "
                    f"{world_size}",
                    generation=generation,
                )
            return True

    def fence(self, generation: int) -> None:
        """Take notice of the trainers' current generation; waits of an older run end."""
        with self._changed:
            if generation > self._fence:
                self._fence = generation
                self._changed.notify_all()

    def close(self) -> None:
        """End all waits, so that the process can end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def lookup(
        self,
        names: Sequence[str],
        ids: Sequence[Array],
        deadline: Deadline,
        *,
        epoch: int,
        context: context_pb2.ContextId | None,
        number: int,
        mark: context_pb2.StepMark | None,
        ahead: bool = False,
        empty: Empty = np.empty,
    ) -> list[Array]:
        """Return the rows of several tables, in memory that `empty` gives.

        Those of now if they are wanted ahead of the step.

        Raises:
            InvalidRequest: They are wanted ahead without a context.
            StaleShardMap: The ids were routed with another map.
            StaleGeneration: The mark is of another generation.
            StepPending: An earlier step did not complete in time.
        """
        self._check_epoch(epoch, deadline)
        if context is not None:
            self.contexts.check(context)
        elif ahead:
            raise InvalidRequest("a lookup ahead of its step takes a context; set one")
        if mark is not None:
            self._wait_for(mark, deadline, ahead)
        tables = [self.table(name, deadline) for name in names]
        # Before the rows are read: what changes in between comes with the refresh.
        count = self._changes.watch(names) if ahead else 0
        parts = [
            Part(table.spec.name, table.slots_of(wanted), table.steps)
            for table, wanted in zip(tables, ids, strict=True)
        ]
        # What is read ahead is used when its step comes.
        rows = [
            table.read(
                part.slots, empty((part.slots.size, table.spec.dim), table.dtype), peek=ahead
            )
            for table, part in zip(tables, parts, strict=True)
        ]
        if ahead and context is not None:
            self.contexts.remember_ahead(context, number, Ahead(parts, count))
        elif context is not None:
            self.contexts.remember(context, number, parts)
        return rows

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
    ) -> list[Array]:
        """Return what changed since a lookup was made ahead, and make it one of its step.

        Returns:
            For each table of the lookup the places of changed rows in it, and these rows.

        Raises:
            LookupNotFound: There was no such lookup here.
            StaleShardMap: The ids were routed with another map.
            StaleGeneration: The mark is of another generation.
            StepPending: An earlier step did not complete in time.
        """
        self._check_epoch(epoch, deadline)
        if mark is not None:
            self._wait_for(mark, deadline)
        ahead = self.contexts.adopt(source, source_number, context, number)
        return [array for part in ahead.parts for array in self._changed_rows(part, ahead.count)]

    def _changed_rows(self, part: Part, count: int) -> tuple[Array, Array]:
        """Return the places of rows that changed after a count, and these rows."""
        table = self._tables[part.table]
        if table.spec.HasField("admission") or table.spec.HasField("eviction"):
            # Rows come and go there without a step: all are read as if for the first time.
            return np.arange(part.slots.size), table.read(part.slots)
        table.prepare(part.slots)
        places = self._changes.since(count, part.table, part.slots)
        return places, table.read(part.slots[places], peek=True)

    def _check_epoch(self, epoch: int, deadline: Deadline) -> None:
        current = self._shard_map(epoch, deadline).epoch
        if epoch != current:
            raise StaleShardMap(
                f"the ids were routed with shard map {epoch}, {current} is current on {self._name}",
                epoch=epoch,
                current=current,
            )

    def _wait_for(
        self, mark: context_pb2.StepMark, deadline: Deadline, ahead: bool = False
    ) -> None:
        with self._changed:
            self._waiters += 1
            try:
                while True:
                    self._check_mark(mark)
                    if ahead or self._run.applied_steps >= mark.step:
                        return
                    if self._closed:
                        raise Draining(f"{self._name} is leaving; ask again", worker=self._name)
                    remaining_s = deadline.remaining_s() - _MARGIN_S
                    if remaining_s <= 0 or self._waiters > self._max_waiters:
                        raise StepPending(
                            f"{self._name} has applied {self._run.applied_steps} steps, step "
                            f"{mark.step} needs {mark.step}: some trainer's gradients are missing",
                            applied_steps=self._run.applied_steps,
                        )
                    self._changed.wait(remaining_s)
            finally:
                self._waiters -= 1

    def _check_mark(self, mark: context_pb2.StepMark) -> None:
        self._run.check(mark)
        if mark.generation < self._fence:
            raise StaleGeneration(
                f"generation {mark.generation} is over, {self._fence} is current; join again",
                generation=mark.generation,
                current=self._fence,
            )

    def backward(
        self,
        context: context_pb2.ContextId,
        number: int,
        grads: Sequence[Array],
        borrowed: bool = False,
        pass_number: int = 0,
    ) -> None:
        """Keep the gradients of a former lookup until they are applied.

        Args:
            context: The context.
            number: Of the lookup.
            grads: For each of its tables.
            borrowed: Whether the arrays are gone when this returns, so that they must be copied.
            pass_number: Of the backward pass within the context.

        Raises:
            LookupNotFound: The context made no such lookup here.
            InvalidRequest: The gradients do not fit the rows, or are no numbers.
        """
        parts = self.contexts.parts(context, number)
        if len(parts) != len(grads):
            raise InvalidRequest(
                f"{len(grads)} gradients for a lookup of {len(parts)} tables; send one a table",
                got=len(grads),
                want=len(parts),
            )
        fitting = [
            self._tables[part.table].check_grads(part.slots, rows)
            for part, rows in zip(parts, grads, strict=True)
        ]
        kept = [rows.copy() for rows in fitting] if borrowed else fitting
        self.contexts.give_back(context, number, kept, pass_number)

    def apply(
        self,
        context: context_pb2.ContextId,
        mark: context_pb2.StepMark | None,
        failed: Collection[int] = (),
    ) -> int:
        """Apply a context's gradients but for failed passes, at once or with the other ranks'."""
        if mark is None:
            # One gradient a table: two lookups of a row make one step, as in one process.
            taken = self.contexts.take(context, failed)
            for part in taken.returned_parts():
                self._tables[part.table].note_staleness(part.steps)
            self._apply(merge(taken.gradients()))
            return self._run.applied_steps
        with self._changed:
            self._check_mark(mark)
            if not self._run.has(mark):
                self._run.check_ahead(mark)
                self._run.stage(mark, self.contexts.take(context, failed).gradients())
                while (complete := self._run.next_complete()) is not None:
                    self._apply(complete, self._run.applied_steps)
                    self.copies.reach(self._run)
                self._changed.notify_all()
            return self._run.applied_steps

    def _apply(self, gradients: Sequence[Gradient], step: int | None = None) -> None:
        for gradient in gradients:
            self._tables[gradient.table].apply(gradient.slots, gradient.rows, step)
            self._changes.record(gradient.table, gradient.slots)

    def push(
        self,
        sender: tuple[str, int, int],
        names: Sequence[str],
        arrays: Sequence[Array],
        epoch: int,
        deadline: Deadline,
    ) -> bool:
        """Apply gradients outside any context; return False when they had been applied before.

        Raises:
            InvalidRequest: Ids are repeated, or gradients do not fit; nothing is applied.
        """
        self._check_epoch(epoch, deadline)
        gradients = []
        for name, ids, rows in zip(names, arrays[::2], arrays[1::2], strict=True):
            table = self.table(name, deadline)
            slots = table.slots_of(ids)
            if unique_inverse(slots)[0].size != slots.size:
                raise InvalidRequest(f"table {name!r}: ids must not repeat in a push", table=name)
            gradients.append(Gradient(name, slots, table.check_grads(slots, rows)))
        return self._pushes.once(sender, lambda: self._apply_new(gradients))

    def _apply_new(self, gradients: Sequence[Gradient]) -> None:
        """Apply gradients whose rows may not exist yet; none of them when memory is short."""
        for gradient in gradients:
            self._tables[gradient.table].prepare(gradient.slots)
        self._apply(gradients)

    def note_asked(self, names: Sequence[str], asked: Sequence[int]) -> None:
        """Count ids that callers wanted, before they removed repeated ones; wrong ones are left."""
        for name, count in zip(names, asked, strict=False):
            self._tables[name].figures.asked += count

    def lag_steps(self) -> int:
        """Return how many steps of the run have begun here and are not applied yet."""
        with self._changed:
            return self._run.lag_steps

    def tables(self) -> list[TableShard]:
        """Return all tables that this server has made."""
        return self._tables.all()

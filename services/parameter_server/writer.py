"""All changes of rows: serialised, each with a record in the log."""

from collections.abc import Sequence
from typing import final

from gradmesh.protos.common.v1 import context_pb2
from gradmesh.protos.frame import Array
from gradmesh.services.parameter_server.contexts import Contexts
from gradmesh.services.parameter_server.dedupe import DedupeTable
from gradmesh.services.parameter_server.log.log import Log, append_lock_of
from gradmesh.services.parameter_server.log.record import (
    AnyRecord,
    ContextApplied,
    Pushed,
    StepCommitted,
    Used,
)
from gradmesh.services.parameter_server.open_context import Gradient, Slots
from gradmesh.services.parameter_server.registry import TableRegistry
from gradmesh.services.parameter_server.run import merge
from gradmesh.services.parameter_server.table import TableShard
from gradmesh.services.parameter_server.versions import RowVersions


@final
class Writer:
    """Changes the rows of a store.

    Args:
        registry: The tables.
        contexts: Where gradients are pending until they are applied.
        versions: Records changed rows, for prefetches.
        log: Where changes are written; None for none.

    Attributes:
        pushes: The dedupe table of pushes.
    """

    def __init__(
        self, registry: TableRegistry, contexts: Contexts, versions: RowVersions, log: Log | None
    ) -> None:
        self._registry = registry
        self._contexts = contexts
        self._versions = versions
        self._log = log
        self.pushes = DedupeTable()

    def log_record(self, record: AnyRecord, gradients: Sequence[Gradient]) -> int:
        """Write a record with its gradients; return its number.

        Raises:
            StoreFull: The log's disk is full.
        """
        if self._log is None:
            return 0
        arrays: list[Array] = []
        for gradient in gradients:
            arrays += [self._registry[gradient.table].ids_of(gradient.slots), gradient.rows]
        with self._log.append_lock:
            return self._log.append(record, arrays)

    def flush(self) -> None:
        """Write the deferred record, if there is one."""
        if self._log is not None:
            self._log.flush()

    def wait(self, number: int) -> None:
        """Wait until a record is as durable as the log's mode requires."""
        if self._log is not None:
            self._log.wait(number)

    def read(
        self, table: TableShard, slots: Slots, out: Array | None = None, *, peek: bool = False
    ) -> Array:
        """Read rows; in tables that count uses, under the append lock and with a record."""
        if self._log is None or peek or not table.counts_uses:
            return table.read(slots, out, peek=peek)
        with self._log.append_lock:
            self._log.append(Used(table.spec.name), [slots])
            return table.read(slots, out)

    def prepare(self, table: TableShard, slots: Slots) -> None:
        """Make rows; in tables that count uses, under the append lock and with a record.

        Raises:
            StoreFull: They do not fit.
        """
        if self._log is None or not table.counts_uses:
            table.prepare(slots)
            return
        with self._log.append_lock:
            self._log.append(Used(table.spec.name), [slots])
            table.prepare(slots)

    def change(self, record: AnyRecord, gradients: Sequence[Gradient]) -> int:
        """Write a record and change rows by its gradients, outside a run; return its number."""
        with append_lock_of(self._log):
            number = self.log_record(record, gradients)
            self._apply(gradients, None)
        return number

    def commit(self, step: int, gradients: Sequence[Gradient], *, logged: bool) -> None:
        """Apply a step whose gradients were written when it was prepared.

        Args:
            step: Step number, from 0.
            gradients: One per table.
            logged: Whether the record of its preparation includes that it is applied.
        """
        with append_lock_of(self._log):
            if self._log is not None and not logged:
                self._log.defer(StepCommitted(step))
            self._apply(gradients, step + 1)

    def _apply(self, gradients: Sequence[Gradient], step: int | None) -> None:
        for gradient in gradients:
            self._registry[gradient.table].apply(gradient.slots, gradient.rows, step)
            self._versions.record(gradient.table, gradient.slots)

    def apply_context(
        self, context: context_pb2.ContextId, mark: context_pb2.StepMark | None = None
    ) -> int:
        """Apply a context by itself; return the number of its record.

        Args:
            context: The context.
            mark: Rank and step number, in a run with staleness.
        """
        # One gradient per table: two lookups of a row make one step, as in one process.
        taken = self._contexts.take_gradients(context)
        for part in taken.returned_parts():
            self._registry[part.table].count_staleness(part.steps)
        merged = merge(taken.gradients())
        if not merged and mark is None:
            return 0
        key = (context.worker, context.incarnation, context.counter)
        names = [gradient.table for gradient in merged]
        rank, steps = (-1, 0) if mark is None else (mark.rank, mark.step + 1)
        return self.change(ContextApplied(key, names, rank, steps), merged)

    def push(self, sender: tuple[str, int, int], gradients: Sequence[Gradient]) -> bool:
        """Apply gradients outside any context, once.

        Raises:
            StoreFull: New rows do not fit; nothing is applied.
        """
        number = 0

        def effect() -> None:
            nonlocal number
            number = self._apply_new(sender, gradients)

        applied = self.pushes.once(sender, effect)
        self.wait(number)
        return applied

    def _apply_new(self, sender: tuple[str, int, int], gradients: Sequence[Gradient]) -> int:
        """Apply gradients whose rows may not exist yet: all of them, or none if memory is short."""
        with append_lock_of(self._log):
            self._registry.check_room([(self._registry[g.table], g.slots) for g in gradients])
            for gradient in gradients:
                self.prepare(self._registry[gradient.table], gradient.slots)
            names = [gradient.table for gradient in gradients]
            return self.change(Pushed(sender, names), gradients)

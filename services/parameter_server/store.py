"""The rows of one server and the rules by which they change. No network.

Lookups of different tables run in parallel; a table's rows are locked while they are read or
changed. In a run, a lookup for step t waits until every step before t is applied here. With a log,
changes of rows are serialised, and each is written to the log before it is acknowledged.
"""

import logging
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import final

import numpy as np

from gradmesh.protos.common.v1 import context_pb2
from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.protos.errors import InvalidRequest
from gradmesh.protos.frame import Array
from gradmesh.protos.sharding import ShardMap
from gradmesh.sdk.transport.call import ArrayAllocator
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.services.parameter_server.checkpoint import Checkpointing
from gradmesh.services.parameter_server.contexts import Contexts
from gradmesh.services.parameter_server.gate import Epochs, Gate, Kind, kind_of_lookup
from gradmesh.services.parameter_server.log.log import Log, append_lock_of
from gradmesh.services.parameter_server.log.record import RunBegun
from gradmesh.services.parameter_server.open_context import (
    Gradient,
    PrefetchedLookup,
    TableLookup,
    bytes_of,
)
from gradmesh.services.parameter_server.refresher import Refresher
from gradmesh.services.parameter_server.registry import TableRegistry
from gradmesh.services.parameter_server.resharding import Resharding
from gradmesh.services.parameter_server.run import check_run
from gradmesh.services.parameter_server.steps import Steps
from gradmesh.services.parameter_server.table import TableShard
from gradmesh.services.parameter_server.versions import RowVersions
from gradmesh.services.parameter_server.writer import Writer

_log = logging.getLogger(__name__)


@final
class TableStore:
    """All tables of one server.

    Args:
        name: Name of this server.
        describe: Returns a table's specification; called once per table.
        shard_map: Returns the current shard map; given the epoch that a caller used, if any.
        max_bytes: Memory that the tables may take together.
        max_waiters: Lookups that may wait for a step at once. Bounded, so that threads stay free
            for the gradients that they wait for.
        ssd_path: Directory for rows that are not hot; None for none.
        max_ssd_bytes: Most bytes of it per table.
        log: Where changes are written; None for none.
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
        log: Log | None = None,
    ) -> None:
        self._name = name
        self._shard_map = shard_map
        self.log = log
        self.gate = Gate(name, max_waiters)
        self.contexts = Contexts(max_bytes=max_bytes)
        self._versions = RowVersions()
        self.registry = TableRegistry(
            name,
            describe,
            shard_map,
            max_bytes=max_bytes,
            ssd_path=ssd_path,
            max_ssd_bytes=max_ssd_bytes,
            log=log,
        )
        self.epochs = Epochs(name, shard_map, self.registry)
        self.writer = Writer(self.registry, self.contexts, self._versions, log)
        self.steps = Steps(
            name,
            self.contexts,
            writer=self.writer,
            max_waiters=max_waiters,
        )
        self.refresher = Refresher(
            self.registry,
            self.steps,
            self.contexts,
            self._versions,
            self.writer,
            self.epochs,
            self.gate,
        )
        self.checkpointing = Checkpointing(
            self.steps,
            self.registry.find,
            self.epochs.check,
            self.contexts,
            log,
            self._versions.invalidate,
        )
        self.steps.on_step = self.checkpointing.reach
        self.resharding = Resharding(
            self.registry,
            self.steps,
            self.contexts,
            self._versions,
            self.writer,
            self.checkpointing,
            self.epochs,
            log,
        )

    def table(self, name: str, deadline: Deadline) -> TableShard:
        """Return this server's shard of a table, made at first use.

        Raises:
            TableNotFound: The table does not exist.
            StoreFull: Its rows do not fit.
            ShardNotReady: It is being restored.
        """
        self.checkpointing.restores.check_open(name)
        return self.registry.find(name, deadline)

    def start_run(
        self,
        generation: int,
        world_size: int,
        tables: Sequence[str],
        deadline: Deadline,
        *,
        origin: int = 0,
        steps: int = 0,
        keep_rows: bool = False,
        staleness: int | None = None,
    ) -> None:
        """Begin a run, or resume one; once per generation.

        Args:
            generation: Generation of the trainers.
            world_size: Number of trainers.
            tables: Tables of the run.
            deadline: Deadline of the call.
            origin: Generation in which the resumed run began; 0 for a new run, which resets its
                tables to their initial rows.
            steps: Steps that the run has completed.
            keep_rows: Whether a new run begins with the current rows.
            staleness: Steps that a rank may be ahead; None for a synchronous run.

        Raises:
            StaleGeneration: A newer generation began.
            RunLost: The run to resume is not here, or not at that step.
            InvalidRequest: It began with another number of trainers, or with none.
        """
        check_run(generation, world_size, origin)
        with self.steps.changed:
            if self.steps.has_begun(generation, world_size):
                return
        with self.gate.passing(Kind.CHANGES, deadline):
            held = [self.registry.find(name, deadline) for name in tables]
            alone = len(self._shard_map(None, deadline).names) == 1
            reset = [] if origin or keep_rows else held
            names = [table.name for table in reset]
            begun = RunBegun(origin or generation, generation, world_size, steps, names, staleness)
            self._begin_run(begun, reset, alone)
        _log.info(
            "run started",
            extra={"generation": generation, "origin": begun.origin, "step": begun.steps},
        )

    def _begin_run(self, begun: RunBegun, reset: Sequence[TableShard], alone: bool) -> None:
        with self.steps.changed, append_lock_of(self.log):
            if self.steps.has_begun(begun.generation, begun.world_size):
                return
            self.steps.alone = alone
            self.steps.begin(begun)
            self.contexts.release_all()
            self.checkpointing.restores.drop(begun.reset)
            for table in reset:
                table.reset()
                self._versions.invalidate(table.name)

    def fence(self, generation: int) -> None:
        """Fence out the generations before a number; waits of older runs end."""
        self.steps.fence(generation)

    def close(self) -> None:
        """End all waits, so that the process can end."""
        self.steps.close()
        self.gate.close()

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
        peek: bool = False,
        empty: ArrayAllocator = np.empty,
    ) -> list[Array]:
        """Return the rows of several tables, in memory that `empty` allocates.

        A prefetch (`ahead`) returns the current rows without waiting for its step. A peek changes
        nothing: a missing row reads as its initial row.

        Raises:
            InvalidRequest: A prefetch has no context.
            StaleShardMap: The ids were routed with another map.
            StaleGeneration: The step mark is of another generation.
            StepPending: An earlier step did not complete in time.
            LimitExceeded: The contexts of the worker, or all, hold too much here.
        """
        self.epochs.check(epoch, deadline)
        size = 0
        if context is not None:
            size = bytes_of(ids)
            self.contexts.check(context, size)
        elif ahead:
            raise InvalidRequest("a lookup ahead of its step needs a context; set one")
        if mark is not None:
            self.steps.wait_to_begin(mark, deadline, ahead)
        tables = [self.table(name, deadline) for name in names]
        begins = context is not None and mark is None and not self.contexts.is_open(context)
        with self.gate.passing(kind_of_lookup(tables, begins=begins, peek=ahead or peek), deadline):
            self.epochs.recheck(epoch)
            # Before the rows are read: a change in between is sent with the refresh.
            count = self._versions.watch(names) if ahead else 0
            parts = [
                TableLookup(table.name, table.slots_of(wanted), table.steps)
                for table, wanted in zip(tables, ids, strict=True)
            ]
            # A single table makes all of its rows or none.
            if not ahead and not peek and len(parts) > 1:
                self.registry.check_room(
                    [(self.registry[part.table], part.slots) for part in parts]
                )
            # Rows of a prefetch are used when their step begins.
            rows = [
                self.writer.read(
                    table,
                    part.slots,
                    empty((part.slots.size, table.dim), table.dtype),
                    peek=ahead or peek,
                )
                for table, part in zip(tables, parts, strict=True)
            ]
            if ahead and context is not None:
                self.contexts.add_prefetch(context, number, PrefetchedLookup(parts, count, size))
            elif context is not None:
                self.contexts.add_lookup(context, number, parts, size)
            return rows

    def backward(
        self,
        context: context_pb2.ContextId,
        number: int,
        grads: Sequence[Array],
        borrowed: bool = False,
        pass_number: int = 0,
    ) -> None:
        """Store the gradients of an earlier lookup until they are applied.

        Args:
            context: The context.
            number: Number of the lookup.
            grads: Gradients for each of its tables.
            borrowed: Whether the arrays are another process's memory, so that they are copied.
            pass_number: Number of the backward pass within the context.

        Raises:
            LookupNotFound: The context made no such lookup here.
            InvalidRequest: The gradients do not fit the rows, or are not finite.
            LimitExceeded: Too many gradients are pending.
        """
        parts = self.contexts.parts(context, number)
        if len(parts) != len(grads):
            raise InvalidRequest(
                f"{len(grads)} gradients for a lookup of {len(parts)} tables; send one per table",
                got=len(grads),
                want=len(parts),
            )
        # Before they are copied.
        self.contexts.check_gradients(context, grads)
        fitting = [
            self.registry[part.table].check_grads(part.slots, rows, borrowed)
            for part, rows in zip(parts, grads, strict=True)
        ]
        self.contexts.add_gradients(context, number, fitting, pass_number)

    def apply(
        self,
        context: context_pb2.ContextId,
        mark: context_pb2.StepMark | None,
        deadline: Deadline | None = None,
        *,
        returned: int | None = None,
        failed: Collection[int] = (),
    ) -> int:
        """Apply a context's gradients: at once, or with those of the other ranks.

        Args:
            context: The context.
            mark: Generation, rank and step number in a run; None to apply at once.
            deadline: How long to wait until the step is prepared here; None does not wait.
            returned: Number of lookups that must have gradients here; None does not check.
            failed: Backward passes whose gradients are dropped.

        Returns:
            Number of steps of the run that are prepared here.

        Raises:
            LookupNotFound: Pending gradients of the context are lost.
        """
        if failed:
            self.contexts.drop_passes(context, failed)
        if returned is not None:
            self.contexts.check_returned(context, returned)
        if mark is None:
            with self.gate.passing(Kind.CHANGES, deadline or Deadline.after(0.0)):
                # A reshard meanwhile drops the lookups before it.
                if returned is not None:
                    self.contexts.check_returned(context, returned)
                self.writer.wait(self.writer.apply_context(context))
            return self.steps.run.applied_steps
        prepared = self.steps.contribute(context, mark)
        if deadline is not None:
            self.steps.wait_prepared(mark, deadline)
        return prepared

    def push(
        self,
        sender: tuple[str, int, int],
        names: Sequence[str],
        arrays: Sequence[Array],
        epoch: int,
        deadline: Deadline,
        borrowed: bool = False,
    ) -> bool:
        """Apply gradients outside any context; return False if they were applied before.

        Args:
            sender: Name and incarnation of the worker, and its number of the push.
            names: The tables.
            arrays: For each table its ids and their gradients.
            epoch: Epoch of the map that the ids were routed with.
            deadline: Deadline of the call.
            borrowed: Whether the gradients are another process's memory, so that they are copied.

        Raises:
            InvalidRequest: Ids are repeated, or gradients do not fit; nothing is applied.
        """
        self.epochs.check(epoch, deadline)
        held = [self.table(name, deadline) for name in names]
        with self.gate.passing(Kind.CHANGES, deadline):
            self.epochs.recheck(epoch)
            gradients = []
            for table, ids, rows in zip(held, arrays[::2], arrays[1::2], strict=True):
                slots = table.slots_of(ids)
                if table.has_repeats(slots):
                    raise InvalidRequest(
                        f"table {table.name!r}: ids must not repeat in a push", table=table.name
                    )
                fitting = table.check_grads(slots, rows, borrowed)
                gradients.append(Gradient(table.name, slots, fitting))
            return self.writer.push(sender, gradients)

    def count_asked(self, names: Sequence[str], ids: Sequence[Array], asked: Sequence[int]) -> None:
        """Count requested ids including repeated ones; without `asked`, none were repeated."""
        for name, count in zip(names, asked or [some.size for some in ids], strict=False):
            self.registry[name].stats.asked += count

    def lag_steps(self) -> int:
        """Return the number of steps of the run that have begun here and are not applied yet."""
        with self.steps.changed:
            return self.steps.run.lag_steps

    def tables(self) -> list[TableShard]:
        """Return all tables that this server has made."""
        return self.registry.all()

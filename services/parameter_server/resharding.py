"""A server's state in a reshard: staged rows, and the atomic switch to the new tables.

Received rows are written to the log and staged beside the tables. The coordinator decides whether
the reshard completes or aborts. Either is one record, so a restarted server is before or after it.
"""

import logging
import threading
from collections.abc import Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.protos.errors import InvalidRequest, ReshardAborted, ShardNotReady
from gradmesh.protos.frame import Array
from gradmesh.sdk.process import fault
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.services.parameter_server.checkpoint import Checkpointing
from gradmesh.services.parameter_server.contexts import Contexts
from gradmesh.services.parameter_server.gate import Epochs
from gradmesh.services.parameter_server.log.log import Log, append_lock_of
from gradmesh.services.parameter_server.log.record import (
    AnyRecord,
    LoggedRun,
    MarksStaged,
    MoveBegun,
    MoveDropped,
    Resharded,
    RowsStaged,
    TableStaged,
)
from gradmesh.services.parameter_server.registry import TableRegistry
from gradmesh.services.parameter_server.run import Run
from gradmesh.services.parameter_server.staging import Staging, bits, fill
from gradmesh.services.parameter_server.steps import Steps
from gradmesh.services.parameter_server.versions import RowVersions
from gradmesh.services.parameter_server.writer import Writer

_log = logging.getLogger(__name__)


@final
class Resharding:
    """The reshards of a store.

    Args:
        registry: The tables.
        steps: The run.
        contexts: The open contexts.
        versions: When rows changed.
        writer: Holds the dedupe table of pushes.
        checkpointing: Holds the snapshots that wait for a step.
        epochs: Receives the epoch of the next map.
        log: Where records are written; None for none.

    Attributes:
        staging: The staged tables; None outside a reshard.
    """

    def __init__(
        self,
        registry: TableRegistry,
        steps: Steps,
        contexts: Contexts,
        versions: RowVersions,
        writer: Writer,
        checkpointing: Checkpointing,
        epochs: Epochs,
        log: Log | None,
    ) -> None:
        self._registry = registry
        self._steps = steps
        self._contexts = contexts
        self._versions = versions
        self._writer = writer
        self._checkpointing = checkpointing
        self._epochs = epochs
        self._log = log
        # Serialises received messages; acquired before all other locks.
        self._lock = threading.RLock()
        self.staging: Staging | None = None
        # The newest reshard that has ended here.
        self._ended = 0

    @property
    def is_staging(self) -> bool:
        """Whether a reshard is under way here."""
        return self.staging is not None

    @property
    def is_leaving(self) -> bool:
        """Whether a reshard is under way that takes all buckets from this server."""
        return self.staging is not None and not bits(self.staging.begun.owned).any()

    @property
    def number(self) -> int:
        """Number of the reshard under way here; 0 for none."""
        return 0 if self.staging is None else self.staging.begun.number

    def begin(
        self,
        number: int,
        owned: NDArray[np.bool_],
        kept: NDArray[np.bool_],
        *,
        is_new: bool,
        epoch: int,
        servers: int,
    ) -> None:
        """Begin to take part in a reshard; idempotent.

        Args:
            number: Number of the reshard.
            owned: The buckets of this server in the next map.
            kept: Those of them that are here already.
            is_new: Whether this server has no shard in the current map.
            epoch: Epoch of the next map.
            servers: Number of servers of the next map.

        Raises:
            ReshardAborted: Tables are being restored, so their rows are incomplete.
        """
        if self._checkpointing.restores.under_way():
            raise ReshardAborted("tables are being restored; scale again when that has ended")
        if self.number == number:
            self._epochs.expect(epoch)
            return
        masks = (np.packbits(owned).tobytes(), np.packbits(kept).tobytes())
        begun = MoveBegun(number, *masks, is_new, servers)
        with self._lock, append_lock_of(self._log):
            self._log_record(begun)
            self.start(begun)
        self._epochs.expect(epoch)

    def start(self, begun: MoveBegun) -> None:
        """Begin without a record; calls are refused until the epoch of the next map is set."""
        self._epochs.expect(0)
        self.staging = Staging(begun, self._registry.new_budget(), self._registry.build)

    def _own(self, number: int) -> Staging:
        if number <= self._ended:
            raise ReshardAborted(f"reshard {number} has ended here; scale again", reshard=number)
        if self.staging is None or self.staging.begun.number != number:
            raise ShardNotReady(
                f"this server has not begun reshard {number} yet; ask again", reshard=number
            )
        return self.staging

    def stage_rows(
        self, number: int, name: str, arrays: dict[str, Array], deadline: Deadline
    ) -> None:
        """Stage rows of another server.

        Raises:
            ReshardAborted: The reshard has ended.
            ShardNotReady: This server has not begun it yet.
            StoreFull: They do not fit.
            InvalidRequest: They are not rows of the table.
        """
        self._own(number)
        fault.point("stage-rows", number)
        if "rows" not in arrays and "buckets" not in arrays:
            raise InvalidRequest(f"table {name!r}: {sorted(arrays)} are not rows to stage")
        spec = self._registry.spec_of(name, deadline)
        with self._lock, append_lock_of(self._log):
            staging = self._own(number)
            fill(staging.table(spec), arrays)
            self._log_table(staging, spec)
            self._log_record(RowsStaged(name, list(arrays)), list(arrays.values()))

    def stage_marks(self, number: int, marks: MarksStaged, deadline: Deadline) -> None:
        """Stage run state, step counts and dedupe table of a server, durably.

        Raises:
            ReshardAborted: The reshard has ended.
            ShardNotReady: This server has not begun it yet.
            StoreFull: A table does not fit.
        """
        self._own(number)
        specs = [self._registry.spec_of(name, deadline) for name in marks.steps]
        with self._lock, append_lock_of(self._log):
            staging = self._own(number)
            staging.check_marks(marks)
            for spec in specs:
                staging.table(spec)
                self._log_table(staging, spec)
            staging.check_room(self._registry.all())
            staging.marks[marks.source] = marks
            last = self._log_record(marks)
        self._writer.wait(last)

    def _log_table(self, staging: Staging, spec: table_pb2.TableSpec) -> None:
        """Write the record of a staged table before the first record that needs it."""
        if spec.name not in staging.logged:
            staging.logged.add(spec.name)
            self._log_record(TableStaged(spec.SerializeToString(deterministic=True)))

    def keep(self, name: str, arrays: dict[str, Array]) -> None:
        """Copy rows that stay here; without a record, because the log already has them.

        Raises:
            StoreFull: They do not fit.
        """
        with self._lock:
            if self.staging is not None:
                fill(self.staging.table(self._registry[name].spec), arrays)

    def check_room(self, *, kept: bool = False) -> None:
        """Check that the staged rows and the rows that stay fit.

        Args:
            kept: Whether `keep` has copied all rows that stay, except those of tables that count
                uses.

        Raises:
            StoreFull: They do not fit.
        """
        with self._lock:
            if self.staging is not None:
                self.staging.check_room(self._registry.all())
                self.staging.has_kept = kept

    def drop(self) -> None:
        """Abort the reshard: drop the staged tables."""
        for table in self._registry.all():
            table.changes.migration.stop()
        if self.staging is not None:
            with self._lock, append_lock_of(self._log):
                self._log_record(MoveDropped(self.number))
                self.discard()

    def discard(self) -> None:
        """Drop the staged tables without a record."""
        self._ended = max(self._ended, self.number)
        self.staging = None
        self._epochs.expect(None)

    def end_as_leaver(self, epoch: int, servers: int) -> bool:
        """End a reshard that takes all buckets from this server, by a map that does not include it.

        If the map has as many servers as were planned, it is the map of the reshard: the rows have
        migrated. If it has more, the reshard was aborted and another server, without these rows,
        got this server's shard: the rows stay here. Either way calls routed with older maps are
        refused.

        Args:
            epoch: Epoch of the map.
            servers: Number of its servers.

        Returns:
            Whether the rows have migrated.
        """
        assert self.staging is not None
        has_gone = self.staging.begun.servers == servers
        if has_gone:
            self.adopt(epoch, alone=False)
        else:
            self._epochs.advance(epoch)
            self.drop()
        return has_gone

    def adopt(self, epoch: int, *, alone: bool) -> None:
        """Switch to the tables of the new map.

        Args:
            epoch: Epoch of the map.
            alone: Whether it has no other server.
        """
        if self.staging is not None:
            # Lock order of all code that changes rows.
            changed, pushes = self._steps.changed, self._writer.pushes
            with (
                self._lock,
                self._registry.paused(),
                changed,
                pushes.paused(),
                append_lock_of(self._log),
            ):
                record = Resharded(self.number)
                self.finish()
                self._log_record(record)
                fault.point("resharded", record.number)
                self._writer.flush()
                self._steps.alone = alone
        self._epochs.advance(epoch)
        _log.info("resharded", extra={"epoch": epoch, "tables": len(self._registry.all())})

    def finish(self) -> None:
        """Replace the tables by the staged ones, without a record."""
        staging = self.staging
        assert staging is not None
        with staging.over_budget():
            for old in self._registry.all():
                staging.take_over(old)
                self._versions.invalidate(old.name)
        staging.adopt_steps()
        for marks in staging.marks.values():
            self._writer.pushes.merge(marks.pushes)
        if not bits(staging.begun.owned).any():
            # A server without rows must not report that it holds the run.
            self._steps.run = Run()
        elif staging.begun.is_new:
            self._steps.run = _newest_run([marks.run for marks in staging.marks.values()])
        self._contexts.drop_all()
        self._checkpointing.snapshots.drop_armed()
        self._registry.replace(staging.tables, staging.made, staging.budget)
        self.discard()

    def _log_record(self, record: AnyRecord, arrays: Sequence[Array] = ()) -> int:
        return 0 if self._log is None else self._log.append(record, arrays)


def _newest_run(held: Sequence[LoggedRun]) -> Run:
    """Return the run that all source servers hold; an empty run if they differ."""
    if len({(run.origin, run.generation, run.steps) for run in held}) != 1:
        return Run()
    run = held[0]
    found = Run(
        run.generation,
        run.world_size,
        origin=run.origin,
        steps=run.steps,
        staleness=run.staleness,
    )
    if run.staleness is not None:
        found.own_steps = list(run.own_steps)
    return found

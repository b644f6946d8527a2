"""A server's part in a reshard: rows that come, and the moment when its tables are others.

What comes is written to the log and kept beside the tables. Whether the reshard is through or given
up, the coordinator decides; both are one record, and a restart finds the server before or after it.
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
    """The part of a store that a reshard needs.

    Args:
        registry: The tables.
        steps: The run.
        contexts: What contexts have read.
        versions: What changed since when.
        writer: Remembers pushes.
        copies: Snapshots that wait for a step.
        epochs: Told of the map to come.
        log: Where it is written; None for nowhere.

    Attributes:
        staging: What has come so far; None outside of a reshard.
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
        # Makes what comes one after the other; taken before all other locks.
        self._lock = threading.RLock()
        self.staging: Staging | None = None
        # The newest reshard that this server was part of, and that is over.
        self._over = 0

    @property
    def is_staging(self) -> bool:
        """Whether a reshard is under way here."""
        return self.staging is not None

    @property
    def is_leaving(self) -> bool:
        """Whether a reshard is under way here that leaves no bucket to this server."""
        return self.staging is not None and not bits(self.staging.begun.owned).any()

    @property
    def number(self) -> int:
        """Number of the reshard that is under way here; 0 for none."""
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
        """Take part in a reshard; the same again changes nothing.

        Args:
            number: Of the reshard.
            owned: Which buckets will be here.
            kept: Which of them are here already.
            is_new: Whether this server holds no shard so far.
            epoch: Of the map to come.
            servers: How many servers that map has.

        Raises:
            ReshardAborted: Tables are being restored; their rows are nobody's yet.
        """
        if self._checkpointing.restores.under_way():
            raise ReshardAborted("tables are being restored; scale again when that is over")
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
        """Begin without a record; nobody is served before the map to come is known."""
        self._epochs.expect(0)
        self.staging = Staging(begun, self._registry.new_budget(), self._registry.build)

    def _own(self, number: int) -> Staging:
        if number <= self._over:
            raise ReshardAborted(f"reshard {number} is over here; scale again", reshard=number)
        if self.staging is None or self.staging.begun.number != number:
            raise ShardNotReady(
                f"this server has not heard of reshard {number} yet; ask again", reshard=number
            )
        return self.staging

    def stage_rows(
        self, number: int, name: str, arrays: dict[str, Array], deadline: Deadline
    ) -> None:
        """Keep rows that will be here.

        Raises:
            ReshardAborted: The reshard is over.
            ShardNotReady: This server has not heard of it yet.
            StoreFull: They do not fit.
            InvalidRequest: They are no rows of the table.
        """
        self._own(number)
        fault.point("stage-rows", number)
        if "rows" not in arrays and "buckets" not in arrays:
            raise InvalidRequest(f"table {name!r}: {sorted(arrays)} are no rows to stage")
        spec = self._registry.spec_of(name, deadline)
        with self._lock, append_lock_of(self._log):
            staging = self._own(number)
            fill(staging.table(spec), arrays)
            self._log_table(staging, spec)
            self._log_record(RowsStaged(name, list(arrays)), list(arrays.values()))

    def stage_marks(self, number: int, marks: MarksStaged, deadline: Deadline) -> None:
        """Keep what goes with the rows of a server; when this returns, all is in the log.

        Raises:
            ReshardAborted: The reshard is over.
            ShardNotReady: This server has not heard of it yet.
            StoreFull: A table does not fit.
        """
        self._own(number)
        specs = [self._registry.spec_of(name, deadline) for name in marks.steps]
        with self._lock, append_lock_of(self._log):
            staging = self._own(number)
            for spec in specs:
                staging.table(spec)
                self._log_table(staging, spec)
            staging.check_room(self._registry.all())
            staging.marks[marks.source] = marks
            last = self._log_record(marks)
        self._writer.wait(last)

    def _log_table(self, staging: Staging, spec: table_pb2.TableSpec) -> None:
        """Write of a table to come, before the first record that needs it."""
        if spec.name not in staging.logged:
            staging.logged.add(spec.name)
            self._log_record(TableStaged(spec.SerializeToString(deterministic=True)))

    def keep(self, name: str, arrays: dict[str, Array]) -> None:
        """Copy rows that stay here; without a record, for they are in the log already.

        Raises:
            StoreFull: They do not fit.
        """
        with self._lock:
            if self.staging is not None:
                fill(self.staging.table(self._registry[name].spec), arrays)

    def check_room(self, *, kept: bool = False) -> None:
        """Return if what comes, and what is here and stays, will fit.

        Args:
            kept: Whether `keep` was given the last of what stays, but for tables that count uses.

        Raises:
            StoreFull: It will not.
        """
        with self._lock:
            if self.staging is not None:
                self.staging.check_room(self._registry.all())
                self.staging.has_kept = kept

    def drop(self) -> None:
        """Give the reshard up: what came is forgotten."""
        for table in self._registry.all():
            table.changes.migration.stop()
        if self.staging is not None:
            with self._lock, append_lock_of(self._log):
                self._log_record(MoveDropped(self.number))
                self.forget()

    def forget(self) -> None:
        """Give it up without a record."""
        self._over = max(self._over, self.number)
        self.staging = None
        self._epochs.expect(None)

    def end_without_place(self, epoch: int, servers: int) -> bool:
        """End a reshard that leaves nothing here, by a map that has no place for this server.

        With as many servers as were planned it is the map of the reshard: rows are others' now.
        With more, the reshard was given up and another server got the place, which has none of
        the rows: they stay here. Either way calls that were routed by older maps are refused.

        Args:
            epoch: Of the map.
            servers: How many servers it has.

        Returns:
            Whether the rows have gone.
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
        """Make the tables those of the new map, and let everybody see them.

        Args:
            epoch: Of the map.
            alone: Whether it has no other server.
        """
        if self.staging is not None:
            # In this order, as whoever changes rows takes them.
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
        """Take the tables to come, without a record."""
        staging = self.staging
        assert staging is not None
        with staging.over_budget():
            for old in self._registry.all():
                staging.take_over(old)
                self._versions.forget(old.name)
        staging.adopt_steps()
        for marks in staging.marks.values():
            self._writer.pushes.merge(marks.pushes)
        if not bits(staging.begun.owned).any():
            # Whoever has no rows must not claim to hold the run.
            self._steps.run = Run()
        elif staging.begun.is_new:
            self._steps.run = _newest_run([marks.run for marks in staging.marks.values()])
        self._contexts.drop_all()
        self._checkpointing.snapshots.drop_armed()
        self._registry.replace(staging.tables, staging.made, staging.budget)
        self.forget()

    def _log_record(self, record: AnyRecord, arrays: Sequence[Array] = ()) -> int:
        return 0 if self._log is None else self._log.append(record, arrays)


def _newest_run(held: Sequence[LoggedRun]) -> Run:
    """Return the run that other servers hold; one that never began if they hold none in common."""
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

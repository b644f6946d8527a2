"""From what a log holds to a store that goes on where the former process ended."""

import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, final

from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.protos.frame import Array
from gradmesh.services.parameter_server.contexts import Gradient
from gradmesh.services.parameter_server.log import record as kinds
from gradmesh.services.parameter_server.log.log import LogCorrupt, read_segment, segments_of
from gradmesh.services.parameter_server.log.snapshot import load_snapshot
from gradmesh.services.parameter_server.run import Run
from gradmesh.services.parameter_server.staging import Staging, fill

if TYPE_CHECKING:
    from gradmesh.services.parameter_server.store import Store


@final
class Replay:
    """Brings a store to where its log ends; nobody else uses the store meanwhile.

    Args:
        store: The store.
    """

    def __init__(self, store: "Store") -> None:
        self._store = store
        self._shelf = store.shelf
        self._steps = store.steps
        self._actions: dict[type, Callable[[Any, Sequence[Array]], object]] = {
            kinds.TableMade: lambda record, arrays: self._shelf.revive(record),
            kinds.RunBegun: self._begin_run,
            kinds.StepPrepared: self._prepare,
            kinds.StepCommitted: self._commit,
            kinds.StepAborted: self._abort,
            kinds.ContextApplied: self._apply_context,
            kinds.Pushed: self._push,
            kinds.Used: self._use,
            kinds.RestoreBegun: self._begin_restore,
            kinds.RowsLoaded: self._load,
            kinds.RestoreEnded: self._end_restore,
            kinds.MoveBegun: lambda record, arrays: store.resharding.start(record),
            kinds.TableStaged: self._stage_table,
            kinds.RowsStaged: self._stage_rows,
            kinds.MarksStaged: self._stage_marks,
            kinds.MoveDropped: lambda record, arrays: store.resharding.forget(),
            kinds.Resharded: lambda record, arrays: store.resharding.finish(),
        }

    def do(self, record: kinds.AnyRecord, arrays: Sequence[Array]) -> None:
        """Do what one record says."""
        self._actions[type(record)](record, arrays)

    def _gradients(self, tables: Sequence[str], arrays: Sequence[Array]) -> list[Gradient]:
        pairs = zip(tables, arrays[::2], arrays[1::2], strict=True)
        return [Gradient(t, self._shelf[t].slots_of(ids), rows) for t, ids, rows in pairs]

    def _apply(self, gradients: Sequence[Gradient], step: int | None = None) -> None:
        for gradient in gradients:
            self._shelf[gradient.table].apply(gradient.slots, gradient.rows, step)

    def _begin_run(self, record: kinds.RunBegun, arrays: Sequence[Array]) -> None:
        self._steps.run = Run(
            record.generation,
            record.world_size,
            origin=record.origin,
            steps=record.steps,
            staleness=record.staleness,
        )
        self._store.copies.restores.drop(record.reset)
        for name in record.reset:
            self._shelf[name].reset()

    def _prepare(self, record: kinds.StepPrepared, arrays: Sequence[Array]) -> None:
        run = self._steps.run
        if run.prepared is not None and record.step > run.applied_steps:
            self._apply_step()
        run.prepared = self._gradients(record.tables, arrays)
        if record.applied:
            self._apply_step()

    def _commit(self, record: kinds.StepCommitted, arrays: Sequence[Array]) -> None:
        self._apply_step()

    def _apply_step(self) -> None:
        run = self._steps.run
        self._apply(run.prepared or (), run.applied_steps + 1)
        run.commit()

    def _abort(self, record: kinds.StepAborted, arrays: Sequence[Array]) -> None:
        self._steps.run.prepared = None

    def _apply_context(self, record: kinds.ContextApplied, arrays: Sequence[Array]) -> None:
        self._apply(self._gradients(record.tables, arrays))
        self._store.contexts.mark_applied(*record.context)
        if record.rank >= 0:
            self._steps.run.advance(record.rank, record.steps)

    def _push(self, record: kinds.Pushed, arrays: Sequence[Array]) -> None:
        self._apply(self._gradients(record.tables, arrays))
        self._store.writer.pushes.remember(record.sender)

    def _use(self, record: kinds.Used, arrays: Sequence[Array]) -> None:
        self._shelf[record.table].prepare(arrays[0])

    def _begin_restore(self, record: kinds.RestoreBegun, arrays: Sequence[Array]) -> None:
        self._store.copies.restores.begin(record.restore, record.tables)
        for name in record.tables:
            self._shelf[name].reset()

    def _load(self, record: kinds.RowsLoaded, arrays: Sequence[Array]) -> None:
        self._shelf[record.table].restore(dict(zip(record.names, arrays, strict=True)))

    def _end_restore(self, record: kinds.RestoreEnded, arrays: Sequence[Array]) -> None:
        opened = self._store.copies.restores.end(record.restore)
        for name, steps in zip(opened, record.steps, strict=False):
            self._shelf[name].steps = steps

    def _stage_table(self, record: kinds.TableStaged, arrays: Sequence[Array]) -> None:
        spec = table_pb2.TableSpec.FromString(record.spec)
        self._staging().table(spec)
        self._staging().noted.add(spec.name)

    def _stage_rows(self, record: kinds.RowsStaged, arrays: Sequence[Array]) -> None:
        table = self._staging().tables[record.table]
        fill(table, dict(zip(record.names, arrays, strict=True)))

    def _stage_marks(self, record: kinds.MarksStaged, arrays: Sequence[Array]) -> None:
        self._staging().marks[record.source] = record

    def _staging(self) -> Staging:
        staging = self._store.resharding.staging
        assert staging is not None, "rows of a reshard come after its beginning"
        return staging


if TYPE_CHECKING:
    from gradmesh.services.parameter_server.store import Store

_log = logging.getLogger(__name__)


def recover(store: "Store") -> int:
    """Bring an empty store to the end of its log; return how many records were done again.

    Raises:
        LogCorrupt: The log is damaged before its end, or has a gap.
    """
    log = store.log
    assert log is not None
    begun = time.monotonic()
    first = number = load_snapshot(store, log.folder)
    # A file that begins before the snapshot was about to be removed.
    found = [(start, path) for start, path in segments_of(log.folder) if start >= first]
    replay = Replay(store)
    for place, (start, path) in enumerate(found):
        if start != number:
            raise LogCorrupt(path, f"records {number} to {start - 1} before it are missing")
        for held, record, arrays in read_segment(path, start, is_last=place == len(found) - 1):
            replay.do(record, arrays)
            number = held + 1
    log.go_on(number)
    log.forget_before(first)
    store.steps.resume_after_restart()
    if number > 1:
        run = store.steps.run
        _log.info(
            "recovered from the log",
            extra={
                "records": number - first,
                "tables": len(store.shelf.all()),
                "generation": run.generation,
                "step": run.applied_steps,
                "prepared": run.prepared_steps,
                "seconds": round(time.monotonic() - begun, 2),
            },
        )
    return number - first

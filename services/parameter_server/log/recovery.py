"""Recovery: replays the log into a store, which resumes where the former process ended."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.protos.errors import StoreFull
from gradmesh.protos.frame import Array
from gradmesh.services.parameter_server.log import record as records
from gradmesh.services.parameter_server.log.log import LogCorrupt, read_segment, segments_of
from gradmesh.services.parameter_server.log.snapshot import load_snapshot
from gradmesh.services.parameter_server.open_context import Gradient
from gradmesh.services.parameter_server.run import Run
from gradmesh.services.parameter_server.staging import Staging, fill

if TYPE_CHECKING:
    from gradmesh.services.parameter_server.store import TableStore


@final
class Replay:
    """Replays records into a store that no other thread uses.

    Args:
        store: The store.
    """

    def __init__(self, store: "TableStore") -> None:
        self._store = store
        self._registry = store.registry
        self._steps = store.steps
        self._actions: dict[type, Callable[[Any, Sequence[Array]], object]] = {
            records.TableMade: lambda record, arrays: self._registry.revive(record),
            records.RunBegun: self._begin_run,
            records.StepPrepared: self._prepare,
            records.StepCommitted: self._commit,
            records.StepAborted: self._abort,
            records.ContextApplied: self._apply_context,
            records.Pushed: self._push,
            records.Used: self._use,
            records.RestoreBegun: self._begin_restore,
            records.RowsLoaded: self._load,
            records.RestoreEnded: self._end_restore,
            records.MoveBegun: lambda record, arrays: store.resharding.start(record),
            records.TableStaged: self._stage_table,
            records.RowsStaged: self._stage_rows,
            records.MarksStaged: self._stage_marks,
            records.MoveDropped: lambda record, arrays: store.resharding.discard(),
            records.Resharded: lambda record, arrays: store.resharding.finish(),
        }

    def apply(self, record: records.AnyRecord, arrays: Sequence[Array]) -> None:
        """Apply one record."""
        self._actions[type(record)](record, arrays)

    def _gradients(self, tables: Sequence[str], arrays: Sequence[Array]) -> list[Gradient]:
        pairs = zip(tables, arrays[::2], arrays[1::2], strict=True)
        return [Gradient(t, self._registry[t].slots_of(ids), rows) for t, ids, rows in pairs]

    def _apply(self, gradients: Sequence[Gradient], step: int | None = None) -> None:
        for gradient in gradients:
            self._registry[gradient.table].apply(gradient.slots, gradient.rows, step)

    def _begin_run(self, record: records.RunBegun, arrays: Sequence[Array]) -> None:
        self._steps.run = Run(
            record.generation,
            record.world_size,
            origin=record.origin,
            steps=record.steps,
            staleness=record.staleness,
        )
        self._store.checkpointing.restores.drop(record.reset)
        for name in record.reset:
            self._registry[name].reset()

    def _prepare(self, record: records.StepPrepared, arrays: Sequence[Array]) -> None:
        run = self._steps.run
        if run.prepared is not None and record.step > run.applied_steps:
            self._apply_step()
        run.prepared = self._gradients(record.tables, arrays)
        if record.applied:
            self._apply_step()

    def _commit(self, record: records.StepCommitted, arrays: Sequence[Array]) -> None:
        self._apply_step()

    def _apply_step(self) -> None:
        run = self._steps.run
        self._apply(run.prepared or (), run.applied_steps + 1)
        run.commit()

    def _abort(self, record: records.StepAborted, arrays: Sequence[Array]) -> None:
        self._steps.run.prepared = None

    def _apply_context(self, record: records.ContextApplied, arrays: Sequence[Array]) -> None:
        self._apply(self._gradients(record.tables, arrays))
        self._store.contexts.restore_applied(*record.context)
        if record.rank >= 0:
            self._steps.run.advance(record.rank, record.steps)

    def _push(self, record: records.Pushed, arrays: Sequence[Array]) -> None:
        self._apply(self._gradients(record.tables, arrays))
        self._store.writer.pushes.record(record.sender)

    def _use(self, record: records.Used, arrays: Sequence[Array]) -> None:
        self._registry[record.table].prepare(arrays[0])

    def _begin_restore(self, record: records.RestoreBegun, arrays: Sequence[Array]) -> None:
        self._store.checkpointing.restores.begin(record.restore, record.tables)
        for name in record.tables:
            self._registry[name].reset()

    def _load(self, record: records.RowsLoaded, arrays: Sequence[Array]) -> None:
        self._registry[record.table].restore(dict(zip(record.names, arrays, strict=True)))

    def _end_restore(self, record: records.RestoreEnded, arrays: Sequence[Array]) -> None:
        opened = self._store.checkpointing.restores.end(record.restore)
        for name, steps in zip(opened, record.steps, strict=False):
            self._registry[name].steps = steps

    def _stage_table(self, record: records.TableStaged, arrays: Sequence[Array]) -> None:
        spec = table_pb2.TableSpec.FromString(record.spec)
        self._staging().table(spec)
        self._staging().logged.add(spec.name)

    def _stage_rows(self, record: records.RowsStaged, arrays: Sequence[Array]) -> None:
        table = self._staging().tables[record.table]
        fill(table, dict(zip(record.names, arrays, strict=True)))

    def _stage_marks(self, record: records.MarksStaged, arrays: Sequence[Array]) -> None:
        self._staging().marks[record.source] = record

    def _staging(self) -> Staging:
        staging = self._store.resharding.staging
        assert staging is not None, "staged rows precede MoveBegun"
        return staging


if TYPE_CHECKING:
    from gradmesh.services.parameter_server.store import TableStore

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def _named(path: Path, what: str) -> Iterator[None]:
    """Raise LogCorrupt where the content of a file does not fit the store.

    Checksums show damage, not that records fit each other.
    """
    try:
        yield
    except (LogCorrupt, StoreFull, OSError, MemoryError):
        raise
    except Exception as error:
        raise LogCorrupt(path, f"{what} does not fit: {type(error).__name__}: {error}") from error


def recover(store: "TableStore") -> int:
    """Restore an empty store from its log; return the number of replayed records.

    Raises:
        LogCorrupt: The log is damaged before its end, or has a gap.
    """
    log = store.log
    assert log is not None
    begun = time.monotonic()
    with _named(log.folder, "its snapshot"):
        first = number = load_snapshot(store, log.folder)
    # Segments before the snapshot were about to be removed.
    found = [(start, path) for start, path in segments_of(log.folder) if start >= first]
    replay = Replay(store)
    for order, (start, path) in enumerate(found):
        if start != number:
            raise LogCorrupt(path, f"records {number} to {start - 1} before it are missing")
        for held, record, arrays in read_segment(path, start, is_last=order == len(found) - 1):
            with _named(path, f"record {held} ({type(record).__name__})"):
                replay.apply(record, arrays)
            number = held + 1
    log.resume_at(number)
    log.remove_before(first)
    store.steps.resume_after_restart()
    if number > 1:
        run = store.steps.run
        _log.info(
            "recovered from the log",
            extra={
                "records": number - first,
                "tables": len(store.registry.all()),
                "generation": run.generation,
                "step": run.applied_steps,
                "prepared": run.prepared_steps,
                "seconds": round(time.monotonic() - begun, 2),
            },
        )
    return number - first

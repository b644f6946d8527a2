"""Snapshots of all tables at one record of the log, so that the records before it can be removed.

A folder `snapshot-N` holds the state after the records before N: safetensors files, a manifest with
their checksums, and `COMPLETE`, written last.
"""

import contextlib
import logging
import shutil
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, final

import msgspec

from gradmesh.protos.errors import CheckpointCorrupt, ShardNotReady, StoreFull
from gradmesh.sdk.checkpoint.manifest import (
    Count,
    DataFile,
    read_sealed,
    seal,
    sync_folder,
    verify_file,
)
from gradmesh.sdk.checkpoint.save import write_file
from gradmesh.sdk.checkpoint.tensors import map_tensors
from gradmesh.services.parameter_server.dedupe import DedupeEntry
from gradmesh.services.parameter_server.log.log import LogCorrupt
from gradmesh.services.parameter_server.log.record import LoggedRun, StepPrepared, TableMade
from gradmesh.services.parameter_server.run import Run
from gradmesh.services.parameter_server.snapshots import joined
from gradmesh.services.parameter_server.table import TableShard
from gradmesh.services.parameter_server.table.table_snapshot import Block

if TYPE_CHECKING:
    from gradmesh.services.parameter_server.store import TableStore

_log = logging.getLogger(__name__)

_PREFIX, _PARTIAL = "snapshot-", ".partial"
_FILE_BYTES = 64 << 20
_FORMAT = 1
_OF_BUCKETS = ("buckets", "clocks", "counters", "uses")


@final
class TableState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One table in a snapshot.

    Attributes:
        made: Its specification and the buckets of this server.
        steps: Steps applied to it.
        files: Files of its rows.
    """

    made: TableMade
    steps: Count
    files: list[DataFile]


@final
class SnapshotManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The manifest of a snapshot.

    Attributes:
        format: Version of this layout.
        number: Number of the first record that is not included.
        run: The run.
        restores: Tables of each restore under way.
        pushes: Dedupe table of the pushes.
        contexts: Ids of the applied contexts.
        tables: All tables.
    """

    format: int
    number: Count
    run: LoggedRun
    restores: dict[str, list[str]]
    pushes: list[DedupeEntry]
    contexts: list[DedupeEntry]
    tables: list[TableState]


def take_snapshot(store: "TableStore") -> bool:
    """Write a snapshot and remove the records before it; return False if it must wait.

    Lookups and changes continue meanwhile.
    """
    log = store.log
    assert log is not None
    name = uuid.uuid4().hex
    # Lock order of all code that changes rows.
    with store.steps.changed, store.writer.pushes.paused(), log.append_lock:
        tables = store.registry.all()
        if store.resharding.is_staging:
            return False  # staged rows are only in the log
        if _path(log.folder, log.next_number).exists():
            return False  # no record since the last snapshot
        try:
            for table in tables:
                table.changes.check(name, "")
        except ShardNotReady:
            return False  # a checkpoint is being read
        for table in tables:
            table.freeze(name, "", with_expired=True)
        number = log.rotate()
        run = store.steps.run
        if run.prepared is not None:
            store.writer.log_record(
                StepPrepared(run.applied_steps, [g.table for g in run.prepared]), run.prepared
            )
        state = SnapshotManifest(
            format=_FORMAT,
            number=number,
            run=LoggedRun(
                run.origin,
                run.generation,
                run.world_size,
                run.applied_steps,
                run.staleness,
                list(run.own_steps),
            ),
            restores=store.checkpointing.restores.under_way(),
            pushes=store.writer.pushes.dump(),
            contexts=store.contexts.dump_applied(),
            tables=[
                TableState(store.registry.made[table.spec.name], table.steps, [])
                for table in tables
            ],
        )
    path = _path(log.folder, number)
    partial = path.with_name(path.name + _PARTIAL)
    try:
        _write(state, tables, name, partial)
        partial.rename(path)
        sync_folder(log.folder)
    finally:
        for table in tables:
            table.changes.thaw(name, stored=False)
        shutil.rmtree(partial, ignore_errors=True)
    log.remove_before(number)
    for old in _snapshots(log.folder)[:-1]:
        shutil.rmtree(old, ignore_errors=True)
    _log.info("log shortened", extra={"record": number, "tables": len(tables)})
    return True


def _path(folder: Path, number: int) -> Path:
    return folder / f"{_PREFIX}{number:020}"


def _write(state: SnapshotManifest, tables: list[TableShard], name: str, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    written = []
    for number, (table, described) in enumerate(zip(tables, state.tables, strict=True)):
        files = [
            write_file(folder, f"{number:04}-{piece:06}.safetensors", block)
            for piece, block in enumerate(_blocks(table, name))
        ]
        written.append(TableState(described.made, described.steps, files))
    seal(folder, msgspec.structs.replace(state, tables=written))


def _blocks(table: TableShard, name: str) -> Iterator[Block]:
    held: list[Block] = []
    piece = 0
    while (block := table.changes.read(name, piece)) is not None:
        piece += 1
        if block:
            held.append(block)
        if sum(a.nbytes for b in held for a in b.values()) >= _FILE_BYTES:
            yield joined(held)
            held = []
    if held:
        yield joined(held)


def _snapshots(folder: Path) -> list[Path]:
    found = [p for p in folder.iterdir() if p.name.startswith(_PREFIX) and p.is_dir()]
    return sorted(p for p in found if not p.name.endswith(_PARTIAL))


def load_snapshot(store: "TableStore", folder: Path) -> int:
    """Restore an empty store from the newest snapshot; return the first record after it.

    Raises:
        LogCorrupt: A file of it is damaged.
    """
    for path in folder.iterdir():
        if path.name.startswith(_PREFIX) and path.name.endswith(_PARTIAL):
            shutil.rmtree(path, ignore_errors=True)
    found = _snapshots(folder)
    if not found:
        return 1
    try:
        state = read_sealed(found[-1], SnapshotManifest, _FORMAT)
        for table in state.tables:
            for file in table.files:
                verify_file(found[-1], file)
    except CheckpointCorrupt as error:
        raise LogCorrupt(found[-1], error.message) from error
    run = state.run
    store.steps.run = Run(
        run.generation,
        run.world_size,
        origin=run.origin,
        steps=run.steps,
        staleness=run.staleness,
    )
    store.steps.run.own_steps = list(run.own_steps)
    store.writer.pushes.load(state.pushes)
    store.contexts.load_applied(state.contexts)
    for table in state.tables:
        _load_table(store.registry.revive(table.made), table, found[-1])
    for name, tables in state.restores.items():
        store.checkpointing.restores.begin(name, tables)
    return state.number


def _load_table(shard: TableShard, state: TableState, folder: Path) -> None:
    shard.steps = state.steps
    for file in state.files:
        arrays = map_tensors(file.inside(folder))
        rows = {n: a for n, a in arrays.items() if n not in _OF_BUCKETS}
        if rows:
            shard.restore(rows)
        if "buckets" in arrays:
            shard.restore({n: arrays[n] for n in _OF_BUCKETS if n in arrays})


if TYPE_CHECKING:
    from gradmesh.services.parameter_server.store import TableStore


_EVERY_S = 1.0


@final
class LogKeeper:
    """A thread that takes a snapshot when the log has grown.

    Args:
        store: The store of the log.
        snapshot_bytes: Size of the log that triggers a snapshot; at least the size of the tables.
    """

    def __init__(self, store: "TableStore", snapshot_bytes: int) -> None:
        self._store = store
        self._snapshot_bytes = snapshot_bytes
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log-keeper", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closed.wait(_EVERY_S):
            log = self._store.log
            held = sum(table.bytes for table in self._store.tables())
            if log is not None:
                with contextlib.suppress(StoreFull):
                    log.flush()
            if log is None or log.bytes_since_snapshot < max(self._snapshot_bytes, held):
                continue
            try:
                take_snapshot(self._store)
            except Exception as error:
                # The log is complete without it, only longer.
                _log.error("no snapshot", extra={"error": str(error)}, exc_info=True)

    def close(self, timeout_s: float = 5.0) -> None:
        """End the thread."""
        self._closed.set()
        self._thread.join(timeout_s)

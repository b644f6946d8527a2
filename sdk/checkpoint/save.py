"""Writing a checkpoint of tables."""

import itertools
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, final
from urllib.parse import quote

import numpy as np

from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.protos.errors import CheckpointCorrupt, InvalidRequest
from gradmesh.protos.frame import Array
from gradmesh.sdk.checkpoint.manifest import (
    COMPLETE,
    DENSE,
    FORMAT,
    MANIFEST,
    MAX_CHAIN,
    VOCABULARY,
    BaseCheckpoint,
    DataFile,
    Manifest,
    RunManifest,
    TableFiles,
    manifests_of,
    seal,
    sync_folder,
)
from gradmesh.sdk.checkpoint.snapshot import Block, Progress, ProgressCounter, Snapshot
from gradmesh.sdk.checkpoint.table_content import spec_dict
from gradmesh.sdk.checkpoint.tensors import checksum_of, write_tensors
from gradmesh.sdk.cluster.servers import ParameterServers
from gradmesh.sdk.process import fault
from gradmesh.sdk.process.confined import is_device_name
from gradmesh.sdk.transport.deadline import Deadline

# Longest time that Ctrl-C waits for threads.
_INTERRUPT_S = 0.1

# Size of a shard file: it fits in memory once for each server, and there are few of them.
_FILE_BYTES = 64 << 20

T = TypeVar("T")

_RESERVED = (MANIFEST, COMPLETE, DENSE, VOCABULARY)


@final
@dataclass(frozen=True, slots=True, eq=False)
class RunArrays:
    """The dense part of a run, which a trainer adds to a checkpoint.

    Args:
        world_size: Trainers of the run.
        batches: Batches that all trainers together have done.
        settings: The settings of the job.
        dense: Parameters, buffers and optimizer state.
        vocabulary: The file of the job's vocabulary, if it has one; copied, so that a
            reader of the checkpoint needs no path of this machine.
    """

    world_size: int
    batches: int
    settings: dict[str, Any]
    dense: Mapping[str, Array]
    vocabulary: Path | None = None

    def write(self, folder: Path) -> RunManifest:
        """Write the arrays into a folder."""
        file = write_file(folder, DENSE, self.dense)
        words = None
        if self.vocabulary is not None and self.vocabulary.is_file():
            # Better a checkpoint without it, if it was removed meanwhile, than none.
            words = _copy_file(self.vocabulary, folder, VOCABULARY)
        return RunManifest(self.world_size, self.batches, self.settings, file, words)


def save(
    servers: ParameterServers,
    specs: Sequence[table_pb2.TableSpec],
    path: Path,
    *,
    base: Path | None,
    progress: Progress | None,
    timeout_s: float,
    call_s: float,
) -> Manifest:
    """Write a checkpoint; the folder appears when it is complete.

    Args:
        servers: The servers that hold the rows.
        specs: The tables.
        path: The folder; must not exist, or be empty.
        base: The checkpoint to base it on; None for a full one.
        progress: Called with rows done and rows in all.
        timeout_s: Deadline of the whole.
        call_s: Longest time of one call, and of the wait for a common step.

    Raises:
        InvalidRequest: The folder is in use, or there are no tables.
        CheckpointCorrupt: The base is not a complete checkpoint, or has other tables.
        BaseLost: A server no longer tracks the changes since the base.
    """
    path = path.absolute()
    check_target(path, specs)
    former = None if base is None else read_base(base, specs)
    _base(former, base, path)  # refused before anything is frozen
    with Snapshot.take(
        servers,
        [spec.name for spec in specs],
        base=former.id if former is not None else "",
        freeze_s=min(call_s, timeout_s),
        call_s=call_s,
    ) as snapshot:
        counter = ProgressCounter(snapshot.rows, progress, Deadline.after(timeout_s))
        return write(snapshot, specs, path, counter, former=former, base=base)


def read_base(base: Path, specs: Sequence[table_pb2.TableSpec]) -> Manifest:
    """Return the manifest of the checkpoint to base another one on.

    Raises:
        InvalidRequest: It has other tables.
        CheckpointCorrupt: It is not a complete checkpoint.
    """
    chain = [manifest for _, manifest in manifests_of(base.absolute())]
    former = chain[0]
    if len(chain) >= MAX_CHAIN:
        raise InvalidRequest(
            f"checkpoint {base} ends a chain of {len(chain)}, the longest that can be restored; "
            "make a full checkpoint"
        )
    if [table.table for table in former.tables] != list(specs):
        raise InvalidRequest(
            f"checkpoint {base} has other tables than this one; make a full checkpoint"
        )
    return former


def write(
    snapshot: Snapshot,
    specs: Sequence[table_pb2.TableSpec],
    path: Path,
    counter: ProgressCounter,
    *,
    former: Manifest | None = None,
    base: Path | None = None,
    run: RunArrays | None = None,
) -> Manifest:
    """Write a frozen snapshot to a folder, which appears when it is complete.

    Args:
        snapshot: Frozen; it can be a base afterwards.
        specs: Its tables.
        path: The folder.
        counter: Counts the rows written, and has the deadline.
        former: The manifest of the checkpoint that this one is based on; None for a full one.
        base: The folder of that checkpoint.
        run: The rest of the run; None for tables alone.
    """
    names = [spec.name for spec in specs]
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.partial")
    try:
        files = _write_tables(snapshot, names, partial, counter)
        manifest = Manifest(
            format=FORMAT,
            id=snapshot.name,
            created=time.time(),
            generation=snapshot.generation,
            step=snapshot.step,
            base=_base(former, base, path),
            servers=list(snapshot.shards.names),
            bucket_shards=snapshot.shards.bucket_shards.tolist(),
            tables=[
                TableFiles(spec_dict(spec), snapshot.steps[spec.name], files[spec.name])
                for spec in specs
            ],
            run=None if run is None else run.write(partial),
        )
        fault.point("checkpoint-written", snapshot.step)
        seal(partial, manifest)
        partial.rename(path)
        sync_folder(path.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    snapshot.keep_as_base()
    return manifest


def write_file(folder: Path, path: str, arrays: Mapping[str, Array]) -> DataFile:
    """Write a data file and make it durable."""
    with (folder / path).open("wb") as file:
        size, checksum = write_tensors(file, arrays)
        file.flush()
        os.fsync(file.fileno())
    return DataFile(path, size, checksum, arrays["ids"].size if "ids" in arrays else 0)


def _base(former: Manifest | None, base: Path | None, path: Path) -> BaseCheckpoint | None:
    if former is None or base is None:
        return None
    found = BaseCheckpoint(former.id, os.path.relpath(base.absolute(), path))
    try:
        found.folder(path)
    except CheckpointCorrupt:
        raise InvalidRequest(
            f"checkpoint {path} cannot be based on {base}: a chain is in one folder; write it "
            f"below {base.absolute().parent}",
            path=path,
        ) from None
    return found


def _folder_name(table: str) -> str:
    """Return the name of a table's folder, which is no name of other files or of a device."""
    name = quote(table, safe="")
    return f"={name}" if name in _RESERVED or is_device_name(name) else name


def _copy_file(source: Path, folder: Path, path: str) -> DataFile:
    """Copy a file into a folder and make it durable."""
    shutil.copyfile(source, folder / path)
    with (folder / path).open("rb") as file:
        os.fsync(file.fileno())
    return DataFile(path, *checksum_of(folder / path, source.stat().st_size), 0)


def check_target(path: Path, specs: Sequence[table_pb2.TableSpec]) -> None:
    """Check that a checkpoint of tables can be written to a folder.

    Raises:
        InvalidRequest: The folder is in use, or there are no tables.
    """
    if not specs:
        raise InvalidRequest("there are no tables to write a checkpoint of")
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InvalidRequest(f"{path} exists; give each checkpoint a folder of its own", path=path)


def _write_tables(
    snapshot: Snapshot, names: Sequence[str], folder: Path, counter: ProgressCounter
) -> dict[str, list[DataFile]]:
    for name in names:
        (folder / _folder_name(name)).mkdir(parents=True)

    def copy_shard(shard: int) -> dict[str, list[DataFile]]:
        return {name: list(_files(snapshot, shard, name, folder, counter)) for name in names}

    shards = _for_each(len(snapshot.shards.names), copy_shard, counter)
    for name in names:
        sync_folder(folder / _folder_name(name))
    return {name: [file for found in shards for file in found[name]] for name in names}


def _files(
    snapshot: Snapshot, shard: int, table: str, folder: Path, counter: ProgressCounter
) -> Iterator[DataFile]:
    numbers = itertools.count()
    for blocks in _batches(snapshot.pages(shard, table, counter.deadline)):
        path = f"{_folder_name(table)}/{shard:04}-{next(numbers):06}.safetensors"
        arrays = _joined(blocks)
        file = write_file(folder, path, arrays)
        yield file
        counter.add(file.rows)


def _batches(pages: Iterator[Block]) -> Iterator[list[Block]]:
    held: list[Block] = []
    for page in pages:
        held.append(page)
        if sum(array.nbytes for block in held for array in block.values()) >= _FILE_BYTES:
            yield held
            held = []
    if held:
        yield held


def _joined(blocks: list[Block]) -> Block:
    names = dict.fromkeys(name for block in blocks for name in block)
    return {name: np.concatenate([b[name] for b in blocks if name in b]) for name in names}


def _for_each(count: int, work: Callable[[int], T], counter: ProgressCounter) -> list[T]:
    """Run `work(0)` … `work(count - 1)` at once; return the results in order.

    Raises:
        Exception: The first failure, after all threads have ended.
    """
    with ThreadPoolExecutor(max(1, count), thread_name_prefix="checkpoint") as pool:
        try:
            futures = [pool.submit(work, number) for number in range(count)]
            pending = set(futures)
            while pending:
                # Wait in short intervals, so that Ctrl-C gets through.
                done, pending = wait(pending, _INTERRUPT_S, FIRST_EXCEPTION)
                for future in done:
                    future.result()
            return [future.result() for future in futures]
        finally:
            counter.stop()

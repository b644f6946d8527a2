"""Writing a checkpoint of tables."""

import itertools
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

import numpy as np

from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.protos.errors import InvalidRequest
from gradmesh.sdk.checkpoint.manifest import (
    FORMAT,
    Base,
    DataFile,
    Manifest,
    TableFiles,
    read_manifest,
    seal,
    spec_dict,
    sync_folder,
)
from gradmesh.sdk.checkpoint.parallel import Meter, for_each
from gradmesh.sdk.checkpoint.snapshot import Block, Progress, Snapshot
from gradmesh.sdk.checkpoint.tensors import write_tensors
from gradmesh.sdk.mesh.servers import ParameterServers
from gradmesh.sdk.transport.deadline import Deadline

# Small enough to be held in memory once a server, big enough that there are few files.
_FILE_BYTES = 64 << 20


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
        servers: Who holds the rows.
        specs: The tables.
        path: The folder; must not exist, or be empty.
        base: A checkpoint to add to; None for a full one.
        progress: Told of rows done and rows in all.
        timeout_s: Deadline of the whole.
        call_s: Longest time of one call, and of the wait for a common step.

    Raises:
        InvalidRequest: The folder is in use, or there are no tables.
        CheckpointCorrupt: The base is no complete checkpoint, or of other tables.
        BaseLost: A server does not know what changed since the base.
    """
    path = path.absolute()
    _check(path, specs)
    deadline = Deadline.after(timeout_s)
    former = None if base is None else read_manifest(base.absolute())
    if former is not None and [t.table for t in former.tables] != list(specs):
        raise InvalidRequest(
            f"checkpoint {base} has other tables than this one would; make a full checkpoint"
        )
    names = [spec.name for spec in specs]
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.partial")
    with Snapshot(
        servers,
        names,
        base=former.id if former is not None else "",
        freeze_s=min(call_s, timeout_s),
        call_s=call_s,
    ) as snapshot:
        try:
            files = _copy(snapshot, names, partial, Meter(snapshot.rows, progress, deadline))
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
            )
            seal(partial, manifest)
            partial.rename(path)
            sync_folder(path.parent)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        snapshot.keep_as_base()
    return manifest


def _base(former: Manifest | None, base: Path | None, path: Path) -> Base | None:
    if former is None or base is None:
        return None
    return Base(former.id, os.path.relpath(base.absolute(), path))


def _check(path: Path, specs: Sequence[table_pb2.TableSpec]) -> None:
    if not specs:
        raise InvalidRequest("there are no tables to write a checkpoint of")
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InvalidRequest(f"{path} exists; give each checkpoint a folder of its own", path=path)


def _copy(
    snapshot: Snapshot, names: Sequence[str], folder: Path, meter: Meter
) -> dict[str, list[DataFile]]:
    for name in names:
        (folder / quote(name, safe="")).mkdir(parents=True)

    def copy_shard(shard: int) -> dict[str, list[DataFile]]:
        return {name: list(_files(snapshot, shard, name, folder, meter)) for name in names}

    shards = for_each(len(snapshot.shards.names), copy_shard, meter)
    for name in names:
        sync_folder(folder / quote(name, safe=""))
    return {name: [file for found in shards for file in found[name]] for name in names}


def _files(
    snapshot: Snapshot, shard: int, table: str, folder: Path, meter: Meter
) -> Iterator[DataFile]:
    numbers = itertools.count()
    for blocks in _batches(snapshot.pages(shard, table, meter.deadline)):
        path = f"{quote(table, safe='')}/{shard:04}-{next(numbers):06}.safetensors"
        arrays = _joined(blocks)
        with (folder / path).open("wb") as file:
            size, checksum = write_tensors(file, arrays)
            file.flush()
            os.fsync(file.fileno())
        rows = arrays["ids"].size if "ids" in arrays else 0
        yield DataFile(path, size, checksum, rows)
        meter.add(rows)


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

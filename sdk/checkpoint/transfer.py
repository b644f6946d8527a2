"""Export of a table to a file of (ids, rows), and import; the file extension chooses the format."""

import os
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.protos.dtype import numpy_dtype
from gradmesh.protos.errors import IdOutOfRange, InvalidRequest
from gradmesh.protos.frame import Array
from gradmesh.protos.sharding import Ids
from gradmesh.sdk.checkpoint.load import Sender
from gradmesh.sdk.checkpoint.manifest import sync_folder
from gradmesh.sdk.checkpoint.parquet import ParquetReader, ParquetWriter
from gradmesh.sdk.checkpoint.row_files import (
    NpzReader,
    NpzWriter,
    RowReader,
    RowWriter,
    SafetensorsReader,
    SafetensorsWriter,
)
from gradmesh.sdk.checkpoint.snapshot import Progress, ProgressCounter, Snapshot
from gradmesh.sdk.checkpoint.tensors import as_bytes
from gradmesh.sdk.cluster.servers import ParameterServers
from gradmesh.sdk.table.table_set import as_ids
from gradmesh.sdk.transport.deadline import Deadline

_ENDINGS = (".safetensors", ".npz", ".parquet")
_BLOCK_BYTES = 4 << 20


def export_rows(
    servers: ParameterServers,
    spec: table_pb2.TableSpec,
    path: Path,
    *,
    progress: Progress | None,
    timeout_s: float,
    call_s: float,
) -> int:
    """Write all rows of a table, sorted by id; the file appears when it is whole.

    Rows go through a scratch file beside it, since they come in another order; only the ids are
    held in memory.

    Returns:
        How many rows there are.

    Raises:
        InvalidRequest: The extension is unknown, or the package for its format is missing.
    """
    check_ending(path)
    dtype = numpy_dtype(spec.dtype)
    deadline = Deadline.after(timeout_s)
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.partial")
    # At once, so that a missing package is reported before any work.
    writer_for(path, partial, 0, spec.dim, dtype).close()
    try:
        with tempfile.TemporaryFile(dir=path.absolute().parent) as scratch:
            with Snapshot.take(
                servers, [spec.name], freeze_s=min(call_s, timeout_s), call_s=call_s
            ) as snapshot:
                counter = ProgressCounter(snapshot.rows, progress, deadline)
                ids = _spool(snapshot, spec.name, scratch, counter)
            order = np.argsort(ids)
            with writer_for(path, partial, ids.size, spec.dim, dtype) as writer:
                for some, rows in _sorted(ids, order, scratch, spec.dim, dtype):
                    writer.write(some, rows)
                    counter.add(0)
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.rename(path)
        sync_folder(path.absolute().parent)
    finally:
        partial.unlink(missing_ok=True)
    return int(ids.size)


def _spool(snapshot: Snapshot, table: str, scratch: IO[bytes], counter: ProgressCounter) -> Ids:
    """Write rows in the order they come; return the ids in that order."""
    found = [np.empty(0, np.int64)]
    for shard in range(len(snapshot.shards.names)):
        for page in snapshot.pages(shard, table, counter.deadline):
            if "ids" in page:
                found.append(page["ids"].copy())
                scratch.write(as_bytes(page["rows"]))
                counter.add(page["ids"].size)
    scratch.flush()
    return np.concatenate(found)


def _sorted(
    ids: Ids, order: Ids, scratch: IO[bytes], dim: int, dtype: np.dtype[Any]
) -> Iterator[tuple[Ids, Array]]:
    if not ids.size:
        return
    raw = np.memmap(scratch, np.uint8, "r", shape=(ids.size, dim * dtype.itemsize))
    most = max(1, _BLOCK_BYTES // (dim * dtype.itemsize))
    for begin in range(0, ids.size, most):
        positions = order[begin : begin + most]
        yield ids[positions], raw[positions].view(dtype)


def import_rows(
    servers: ParameterServers,
    spec: table_pb2.TableSpec,
    path: Path,
    *,
    progress: Progress | None,
    timeout_s: float,
    call_s: float,
) -> int:
    """Set rows of a table from a file, all of which is checked first.

    Their optimizer state starts from zero; other rows stay.

    Returns:
        How many rows there were.

    Raises:
        InvalidRequest: Another dim, repeated ids, rows that are not finite, or no such file;
            nothing is changed.
        IdOutOfRange: An id is not a row of the table; nothing is changed.
    """
    reader = reader_for(path)
    counter = ProgressCounter(reader.count, progress, Deadline.after(timeout_s))
    _check_file(reader, spec, path, counter)
    sender = Sender.open(servers, "", counter.deadline, call_s)
    dtype = numpy_dtype(spec.dtype)
    for ids, rows in reader.blocks(_most(reader)):
        sender.send(spec.name, {"ids": ids, "rows": rows.astype(dtype, copy=False)})
        counter.add(ids.size)
    return reader.count


def check_import(spec: table_pb2.TableSpec, path: Path, timeout_s: float) -> None:
    """Check that a file fits a table's name, rows, dim and dtype.

    Raises:
        InvalidRequest: It does not fit.
        IdOutOfRange: An id is not a row of the table.
    """
    reader = reader_for(path)
    _check_file(reader, spec, path, ProgressCounter(reader.count, None, Deadline.after(timeout_s)))


def _most(reader: RowReader) -> int:
    return max(1, _BLOCK_BYTES // max(1, reader.dim * reader.dtype.itemsize))


def _check_file(
    reader: RowReader, spec: table_pb2.TableSpec, path: Path, counter: ProgressCounter
) -> None:
    dtype = numpy_dtype(spec.dtype)
    if reader.dim != spec.dim or (reader.dtype.kind != "f" and reader.dtype.name != "bfloat16"):
        raise InvalidRequest(
            f"{path}: rows of {reader.dim} {reader.dtype} for table {spec.name!r} with rows of "
            f"{spec.dim} {dtype}",
            table=spec.name,
        )
    found = [np.empty(0, np.int64)]
    for ids, rows in reader.blocks(_most(reader)):
        found.append(_check_ids(ids, spec))
        with np.errstate(over="ignore"):
            fitting = rows.astype(dtype, copy=False)
        if not np.isfinite(fitting).all():
            raise InvalidRequest(
                f"{path}: a row is not finite as {dtype}; nothing was imported",
                table=spec.name,
            )
        counter.add(0)
    ids = np.sort(np.concatenate(found))
    repeated = ids[1:][ids[1:] == ids[:-1]]
    if repeated.size:
        raise InvalidRequest(f"{path}: id {repeated[0]} appears twice; nothing was imported")


def _check_ids(ids: Array, spec: table_pb2.TableSpec) -> Ids:
    wanted = as_ids(ids, spec.name)
    outside = (wanted < 0) | (wanted >= spec.rows) if spec.rows else np.zeros(wanted.shape, bool)
    if outside.any():
        bad = int(wanted[outside][0])
        raise IdOutOfRange(
            f"table {spec.name!r}: id {bad} is not among its rows 0 to {spec.rows - 1}",
            table=spec.name,
            id=bad,
        )
    return wanted


def writer_for(path: Path, file: Path, count: int, dim: int, dtype: np.dtype[Any]) -> RowWriter:
    """Return a writer.

    Args:
        path: Its extension chooses the format.
        file: What is written.
        count: Rows that will come.
        dim: Elements in a row.
        dtype: Of the elements.

    Raises:
        InvalidRequest: No such format, or it needs a package that is missing.
    """
    check_ending(path)
    if path.suffix == ".parquet":
        return ParquetWriter(file, dim, dtype)
    if path.suffix == ".npz":
        return NpzWriter(file, count, dim, dtype)
    return SafetensorsWriter(file, count, dim, dtype)


def reader_for(path: Path) -> RowReader:
    """Return a reader.

    Raises:
        FileNotFoundError: There is no such file.
        InvalidRequest: The file is not in the format of its extension, or a package is missing.
    """
    check_ending(path)
    path.stat()  # a missing file is no damaged one
    if path.suffix == ".parquet":
        return ParquetReader(path)
    if path.suffix == ".npz":
        return NpzReader(path)
    return SafetensorsReader(path)


def check_ending(path: Path) -> None:
    """Check that the extension of a file is that of a format.

    Raises:
        InvalidRequest: It is not.
    """
    if path.suffix not in _ENDINGS:
        raise InvalidRequest(
            f"{path}: the name must end in {', '.join(_ENDINGS)}, the format", path=path
        )

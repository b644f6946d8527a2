"""The manifest of a checkpoint, and how it is verified.

The folder has data files (shard files with rows of one server, and the dense part of a run),
`manifest.json` with a checksum of each, and `COMPLETE` with the checksum of the manifest. It gets
its name when all files are on disk: a checkpoint is complete or invisible.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar, final

import msgspec

from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.protos.errors import CheckpointCorrupt, InvalidRequest
from gradmesh.sdk.checkpoint.table_content import check_arrays_of, read_spec
from gradmesh.sdk.checkpoint.tensors import checksum_of, map_tensors, read_header
from gradmesh.sdk.process.bounded_file import check_depth, read_bounded
from gradmesh.sdk.process.confined import confined

M = TypeVar("M")

FORMAT = 1
MANIFEST = "manifest.json"
COMPLETE = "COMPLETE"
DENSE = "dense.safetensors"
"""File of a run's parameters, buffers and optimizer state."""
VOCABULARY = "vocabulary.safetensors"
"""File of the vocabulary of a run's data, if they have one."""

MAX_MANIFEST_BYTES = 16 << 20
"""Biggest manifest that is written and read: about 100 000 data files of 64 MiB."""
MAX_COMPLETE_BYTES = 4096
MAX_CHAIN = 1024
"""Most checkpoints that are based on each other."""

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Crc: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
# The last second of the year 9999, the latest that a date can have.
_Time: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=253402300799)]
_Id: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[0-9A-Za-z_.:-]{1,256}$")]


@final
class DataFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One data file: a safetensors file below the folder.

    Attributes:
        path: Relative to the folder.
        bytes: Its size.
        crc32: Of all its bytes.
        rows: Rows in it.
    """

    path: str
    bytes: Count
    crc32: _Crc
    rows: Count

    def inside(self, folder: Path) -> Path:
        """Return its path below the folder of its manifest.

        Raises:
            CheckpointCorrupt: The path leads out of the folder.
        """
        try:
            return confined(self.path, folder)
        except ValueError as error:
            raise corrupt(folder / MANIFEST, str(error)) from None


@final
class TableFiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The shard files of one table.

    Attributes:
        spec: Its specification, as JSON.
        steps: Steps applied to it on each server.
        files: Its data.
    """

    spec: dict[str, Any]
    steps: Annotated[list[Count], msgspec.Meta(min_length=1)]
    files: list[DataFile]

    @property
    def table(self) -> table_pb2.TableSpec:
        """Its specification; `read_manifest` has checked that there is one."""
        return read_spec(self.spec)


@final
class BaseCheckpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The checkpoint that an incremental one is based on.

    Attributes:
        id: Of that checkpoint.
        path: Relative to the folder of the incremental one.
    """

    id: _Id
    path: str

    def folder(self, checkpoint: Path) -> Path:
        """Return its folder; all checkpoints of a chain are below one folder.

        Args:
            checkpoint: The folder of the incremental checkpoint.

        Raises:
            CheckpointCorrupt: The path leads out of the folder that holds the checkpoint.
        """
        up, _, below = self.path.partition("/")
        try:
            if up != "..":
                raise ValueError(f"base {self.path!r} is not beside the checkpoint")
            return confined(below, checkpoint.parent)
        except ValueError as error:
            raise corrupt(checkpoint / MANIFEST, str(error)) from None


@final
class RunManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The part of a run that is not in its tables.

    Attributes:
        world_size: Trainers of the run.
        batches: Batches that all trainers together have done: the data position.
        settings: The settings of the job.
        dense: Parameters, buffers and optimizer state, by torch's names.
        vocabulary: The vocabulary of the job's data; None if it has none.
    """

    world_size: Count
    batches: Count
    settings: dict[str, Any]
    dense: DataFile
    vocabulary: DataFile | None = None

    @property
    def files(self) -> list[DataFile]:
        """Its data files."""
        return [self.dense] if self.vocabulary is None else [self.dense, self.vocabulary]


@final
class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A checkpoint.

    Attributes:
        format: Version of this layout.
        id: Unique.
        created: Seconds since 1970.
        generation: Of the run; 0 outside.
        step: Steps of the run that are in it.
        base: The checkpoint it is based on; None for a full one.
        servers: The parameter servers that held the rows.
        bucket_shards: For each bucket the index of its server.
        tables: All tables.
        run: The rest of the run; None for tables alone.
    """

    format: int
    id: _Id
    created: _Time
    generation: Count
    step: Count
    base: BaseCheckpoint | None
    servers: list[_Id]
    bucket_shards: list[Count]
    tables: list[TableFiles]
    run: RunManifest | None = None

    @property
    def rows(self) -> int:
        """Rows in all files."""
        return sum(file.rows for table in self.tables for file in table.files)

    @property
    def bytes(self) -> int:
        """Bytes of all data files."""
        return sum(file.bytes for file in self.files)

    @property
    def files(self) -> list[DataFile]:
        """All data files."""
        rest = [] if self.run is None else self.run.files
        return [*(file for table in self.tables for file in table.files), *rest]


@final
class _Format(msgspec.Struct, frozen=True):
    """The one field that every version has."""

    format: int


def seal(folder: Path, manifest: msgspec.Struct) -> None:
    """Write the manifest, then `COMPLETE`; all data files must be on disk.

    Raises:
        InvalidRequest: The manifest is longer than readers accept.
    """
    text = json.dumps(msgspec.to_builtins(manifest), indent=1).encode()
    if len(text) > MAX_MANIFEST_BYTES:
        raise InvalidRequest(
            f"checkpoint {folder}: its manifest would have {len(text):,} bytes, at most "
            f"{MAX_MANIFEST_BYTES:,} are read; save some of the tables only"
        )
    _write(folder / MANIFEST, text)
    _write(folder / COMPLETE, _seal(text))
    sync_folder(folder)


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a complete checkpoint, whose fields are all valid.

    Raises:
        CheckpointCorrupt: It is not complete, or its manifest is damaged.
    """
    manifest = read_sealed(folder, Manifest, FORMAT)
    try:
        names = [read_spec(table.spec).name for table in manifest.tables]
        check_depth(manifest.run and manifest.run.settings)
    except ValueError as error:
        raise corrupt(folder / MANIFEST, str(error)) from None
    run = manifest.run
    if run is not None and (
        run.dense.path != DENSE
        or (run.vocabulary is not None and run.vocabulary.path != VOCABULARY)
    ):
        raise corrupt(folder / MANIFEST, f"the run's files are not {DENSE} and {VOCABULARY}")
    paths = [file.path for file in manifest.files]
    if len(set(names)) != len(names) or len(set(paths)) != len(paths):
        raise corrupt(folder / MANIFEST, "it has a table or a file twice")
    if max(manifest.bucket_shards, default=-1) >= len(manifest.servers):
        raise corrupt(folder / MANIFEST, "bucket_shards has a number that no server has")
    for file in manifest.files:
        file.inside(folder)
    if manifest.base is not None:
        manifest.base.folder(folder)
    return manifest


def read_sealed(folder: Path, kind: type[M], version: int) -> M:
    """Return what `seal` wrote into a folder.

    Args:
        folder: The folder.
        kind: Type of the manifest, with a field `format`.
        version: The supported one.

    Raises:
        CheckpointCorrupt: It is not complete, damaged, or of another version.
    """
    sealed = _read(folder / COMPLETE, MAX_COMPLETE_BYTES)
    text = _read(folder / MANIFEST, MAX_MANIFEST_BYTES)
    if sealed != _seal(text):
        raise corrupt(folder / MANIFEST, f"its checksum is not the one in {COMPLETE}")
    try:
        found = msgspec.json.decode(text, type=_Format).format
        if found != version:
            raise corrupt(folder / MANIFEST, f"format {found}; this version reads {version}")
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise corrupt(folder / MANIFEST, str(error)) from None


def verify(folder: Path, manifest: Manifest) -> None:
    """Check that every data file is as it was written, and holds what its table can hold.

    Raises:
        CheckpointCorrupt: One is missing, damaged or of another table; the message names it.
    """
    for table in manifest.tables:
        spec = table.table
        for file in table.files:
            path = verify_file(folder, file)
            try:
                rows = check_arrays_of(spec, map_tensors(path))
            except ValueError as error:
                raise corrupt(path, str(error)) from None
            if rows != file.rows:
                raise corrupt(path, f"it has {rows} rows, the manifest says {file.rows}")
    for file in [] if manifest.run is None else manifest.run.files:
        verify_file(folder, file)


def verify_file(folder: Path, file: DataFile) -> Path:
    """Check that a data file is as it was written; return its path.

    Raises:
        CheckpointCorrupt: It is missing or damaged, or its path leads out of the folder.
    """
    path = file.inside(folder)
    try:
        size, checksum = checksum_of(path, file.bytes)
        if (size, checksum) != (file.bytes, file.crc32):
            raise corrupt(
                path,
                f"{size} bytes with CRC {checksum:08x}, {file.bytes} with {file.crc32:08x} were "
                "written",
            )
        read_header(path)
    except (OSError, ValueError) as error:
        raise corrupt(path, str(error)) from None
    return path


def chain_of(folder: Path) -> list[tuple[Path, Manifest]]:
    """Return a checkpoint after those it is based on, the full one first; all verified.

    Raises:
        CheckpointCorrupt: One of them is missing, damaged or not the expected one.
    """
    chain = list(manifests_of(folder))[::-1]
    _check_same_tables([manifest for _, manifest in chain], chain[0][0])
    for path, manifest in chain:
        verify(path, manifest)
    return chain


def manifests_of(folder: Path) -> Iterator[tuple[Path, Manifest]]:
    """Yield a checkpoint, then those it is based on; their data files are not read.

    Raises:
        CheckpointCorrupt: One of them is missing, damaged or not the expected one, or the chain has
            no end.
    """
    seen: set[str] = set()
    wanted: str | None = None
    while True:
        manifest = read_manifest(folder)
        if wanted not in (None, manifest.id):
            raise corrupt(folder, f"it is checkpoint {manifest.id}, not the base {wanted}")
        check_chain(folder, manifest, seen)
        yield folder, manifest
        if manifest.base is None:
            return
        wanted, folder = manifest.base.id, manifest.base.folder(folder)


def check_chain(folder: Path, manifest: Manifest, seen: set[str]) -> None:
    """Add a checkpoint to those of a chain seen so far.

    Raises:
        CheckpointCorrupt: It is one of them, or there are too many.
    """
    if manifest.id in seen:
        raise corrupt(folder, "it is based on itself")
    if len(seen) >= MAX_CHAIN:
        raise corrupt(folder, f"more than {MAX_CHAIN} checkpoints are based on each other")
    seen.add(manifest.id)


def _check_same_tables(chain: Sequence[Manifest], folder: Path) -> None:
    specs = [[table.spec for table in manifest.tables] for manifest in chain]
    if any(spec != specs[-1] for spec in specs):
        raise corrupt(folder, "its tables are not those of the checkpoint that is based on it")


def corrupt(path: Path, why: str) -> CheckpointCorrupt:
    """Return the error about a file or folder."""
    return CheckpointCorrupt(f"checkpoint: {path}: {why}", path=path)


def sync_folder(folder: Path) -> None:
    """Make the entries of a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _seal(text: bytes) -> bytes:
    return f"sha256 {hashlib.sha256(text).hexdigest()} {MANIFEST}\n".encode()


def _write(path: Path, data: bytes) -> None:
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.rename(path)


def _read(path: Path, most: int) -> bytes:
    try:
        return read_bounded(path, most)
    except OSError as error:
        why = f"{error.strerror or error}; it is not a complete checkpoint"
        raise corrupt(path, why) from None
    except ValueError as error:
        raise corrupt(path, str(error)) from None

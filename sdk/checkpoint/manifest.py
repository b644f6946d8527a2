"""The manifest of a checkpoint, and how it is verified.

The folder has data files (shard files with rows of one server, and the dense part of a run),
`manifest.json` with a checksum of each, and `COMPLETE` with the checksum of the manifest. It gets
its name when all files are on disk: a checkpoint is complete or invisible.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar, final

import msgspec
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError

from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.protos.errors import CheckpointCorrupt
from gradmesh.sdk.checkpoint.tensors import checksum_of, read_header

M = TypeVar("M")

FORMAT = 1
MANIFEST = "manifest.json"
COMPLETE = "COMPLETE"


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
    bytes: int
    crc32: int
    rows: int


@final
class TableFiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The shard files of one table.

    Attributes:
        spec: Its specification, as JSON.
        steps: Steps applied to it on each server.
        files: Its data.
    """

    spec: dict[str, Any]
    steps: list[int]
    files: list[DataFile]

    @property
    def table(self) -> table_pb2.TableSpec:
        """Its specification."""
        return ParseDict(self.spec, table_pb2.TableSpec())


@final
class BaseCheckpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The checkpoint that an incremental one is based on.

    Attributes:
        id: Of that checkpoint.
        path: Relative to the folder of the incremental one.
    """

    id: str
    path: str


@final
class RunManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The part of a run that is not in its tables.

    Attributes:
        world_size: Trainers of the run.
        batches: Batches that all trainers together have done: the data position.
        settings: The settings of the job.
        dense: Parameters, buffers and optimizer state, by torch's names.
    """

    world_size: int
    batches: int
    settings: dict[str, Any]
    dense: DataFile


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
    id: str
    created: float
    generation: int
    step: int
    base: BaseCheckpoint | None
    servers: list[str]
    bucket_shards: list[int]
    tables: list[TableFiles]
    run: RunManifest | None = None

    @property
    def rows(self) -> int:
        """Rows in all files."""
        return sum(file.rows for table in self.tables for file in table.files)

    @property
    def bytes(self) -> int:
        """Bytes of all data files."""
        dense = 0 if self.run is None else self.run.dense.bytes
        return dense + sum(file.bytes for table in self.tables for file in table.files)


@final
class _Format(msgspec.Struct, frozen=True):
    """The one field that every version has."""

    format: int


def spec_dict(spec: table_pb2.TableSpec) -> dict[str, Any]:
    """Return a specification as JSON for a manifest."""
    found: dict[str, Any] = MessageToDict(spec)
    return found


def seal(folder: Path, manifest: msgspec.Struct) -> None:
    """Write the manifest, then `COMPLETE`; all data files must be on disk."""
    text = json.dumps(msgspec.to_builtins(manifest), indent=1).encode()
    _write(folder / MANIFEST, text)
    _write(folder / COMPLETE, _seal(text))
    sync_folder(folder)


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a complete checkpoint.

    Raises:
        CheckpointCorrupt: It is not complete, or its manifest is damaged.
    """
    return read_sealed(folder, Manifest, FORMAT)


def read_sealed(folder: Path, kind: type[M], version: int) -> M:
    """Return what `seal` wrote into a folder.

    Args:
        folder: The folder.
        kind: Type of the manifest, with a field `format`.
        version: The supported one.

    Raises:
        CheckpointCorrupt: It is not complete, damaged, or of another version.
    """
    sealed, text = _read(folder / COMPLETE), _read(folder / MANIFEST)
    if sealed != _seal(text):
        raise corrupt(folder / MANIFEST, f"its checksum is not the one in {COMPLETE}")
    try:
        found = msgspec.json.decode(text, type=_Format).format
        if found != version:
            raise corrupt(folder / MANIFEST, f"format {found}; this version reads {version}")
        return msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError as error:
        raise corrupt(folder / MANIFEST, str(error)) from None


def verify(folder: Path, manifest: Manifest) -> None:
    """Check that every data file is as it was written.

    Raises:
        CheckpointCorrupt: One is missing or damaged; the message names it.
    """
    for table in manifest.tables:
        try:
            table.table  # noqa: B018
        except ParseError as error:
            raise corrupt(folder / MANIFEST, str(error)) from None
        for file in table.files:
            verify_file(folder, file)
    if manifest.run is not None:
        verify_file(folder, manifest.run.dense)


def verify_file(folder: Path, file: DataFile) -> None:
    """Check that a data file is as it was written.

    Raises:
        CheckpointCorrupt: It is missing or damaged.
    """
    path = folder / file.path
    try:
        size, checksum = checksum_of(path)
        if (size, checksum) != (file.bytes, file.crc32):
            raise corrupt(
                path,
                f"{size} bytes with CRC {checksum:08x}, {file.bytes} with {file.crc32:08x} were "
                "written",
            )
        read_header(path)
    except (OSError, ValueError) as error:
        raise corrupt(path, str(error)) from None


def chain_of(folder: Path) -> list[tuple[Path, Manifest]]:
    """Return a checkpoint after those it is based on, the full one first; all verified.

    Raises:
        CheckpointCorrupt: One of them is missing, damaged or not the expected one.
    """
    chain: list[tuple[Path, Manifest]] = []
    wanted: str | None = None
    while True:
        manifest = read_manifest(folder)
        if wanted not in (None, manifest.id):
            raise corrupt(folder, f"it is checkpoint {manifest.id}, not the base {wanted}")
        if any(manifest.id == held.id for _, held in chain):
            raise corrupt(folder, "it is based on itself")
        verify(folder, manifest)
        chain.insert(0, (folder, manifest))
        if manifest.base is None:
            _check_same_tables([held for _, held in chain], folder)
            return chain
        wanted, folder = manifest.base.id, Path(os.path.normpath(folder / manifest.base.path))


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


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        why = f"{error.strerror or error}; it is not a complete checkpoint"
        raise corrupt(path, why) from None

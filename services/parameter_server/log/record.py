"""The records of a log and their bytes.

A record is a header, a description in MessagePack, and arrays. It has two checksums: one of the
header, so that its length is valid, and one of the rest. The class name of a record is its tag on
disk, so classes and fields keep their names.
"""

import math
import re
import struct
import zlib
from collections.abc import Sequence
from typing import Any, TypeAlias, final

import ml_dtypes
import msgspec
import numpy as np

from gradmesh.protos.frame import Array
from gradmesh.protos.limits import MAX_AXES

MAGIC = 0x4C574D47
# Magic, checksum of the rest of the header, length of the body, length of the description,
# number, checksum of the body.
_HEADER = struct.Struct("<IIQIQI")
_CHECKED = struct.Struct("<QIQI")
HEADER_BYTES = _HEADER.size

# Up to this size a record is joined into one buffer.
_JOINED_BYTES = 1 << 18

# Larger records are never written: a request is smaller.
MAX_BODY_BYTES = 1 << 34


@final
class TableMade(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """A table was made.

    Attributes:
        spec: Its specification, as protobuf.
        owned: The buckets of this server, one bit each.
    """

    spec: bytes
    owned: bytes


@final
class RunBegun(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """A run began, or resumed in another generation.

    Attributes:
        origin: Generation in which it began.
        generation: Generation of its trainers.
        world_size: Contributions that make a step.
        steps: Steps that it has completed.
        reset: Tables that were reset to their initial rows.
        staleness: Steps a rank may be ahead of the slowest; None for a synchronous run.
    """

    origin: int
    generation: int
    world_size: int
    steps: int
    reset: list[str]
    staleness: int | None = None


@final
class StepPrepared(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """A step is prepared; arrays are ids and merged gradients of each table.

    The record implies the commit of the step before.

    Attributes:
        step: Step number.
        tables: Names of the tables.
        applied: Whether it is applied at once, because no other server has to prepare it.
    """

    step: int
    tables: list[str]
    applied: bool = False


@final
class StepCommitted(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """The prepared step is applied; left out if `StepPrepared` of the next step follows."""

    step: int


@final
class StepAborted(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """The prepared step is aborted."""

    step: int


@final
class ContextApplied(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """A context's gradients are applied; arrays are ids and gradients of each table.

    Attributes:
        context: Worker, incarnation and counter.
        tables: Names of the tables.
        rank: In a run with staleness, the rank of the step.
        steps: Steps of that rank that are applied with it.
    """

    context: tuple[str, int, int]
    tables: list[str]
    rank: int = -1
    steps: int = 0


@final
class Pushed(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Gradients outside any context are applied; arrays are ids and gradients of each table."""

    sender: tuple[str, int, int]
    tables: list[str]


@final
class Used(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Rows of a table that counts uses were looked up; the array is their ids."""

    table: str


@final
class RestoreBegun(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """A restore began: its tables are empty and closed."""

    restore: str
    tables: list[str]


@final
class RowsLoaded(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Rows were set; arrays by name."""

    table: str
    names: list[str]


@final
class RestoreEnded(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """A restore ended: its tables are open, with `steps` applied."""

    restore: str
    steps: list[int]


@final
class LoggedRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A run in a snapshot of the log, or in a handover.

    Attributes:
        origin: Generation in which it began.
        generation: Generation of its trainers.
        world_size: Number of trainers.
        steps: Steps that are applied to the rows.
        staleness: As in `RunBegun`.
        own_steps: Applied steps of each rank, in a run with staleness.
    """

    origin: int
    generation: int
    world_size: int
    steps: int
    staleness: int | None
    own_steps: list[int]


@final
class MoveBegun(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """This server takes part in a reshard; an earlier one has ended.

    Attributes:
        number: Number of the reshard.
        owned: The buckets of this server in the next map, one bit each.
        kept: Those of them that are here already.
        is_new: Whether this server has no shard in the current map.
        servers: Number of servers of the next map; 0 in logs of older versions.
    """

    number: int
    owned: bytes
    kept: bytes
    is_new: bool
    servers: int = 0


@final
class TableStaged(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """A staged table was made."""

    spec: bytes


@final
class RowsStaged(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Rows of another server were staged; arrays by name."""

    table: str
    names: list[str]


@final
class MarksStaged(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Run state, step counts and dedupe table of a source server.

    Attributes:
        source: Name of the source server.
        run: The run that it holds.
        steps: Steps applied to its tables.
        pushes: DedupeTable that took effect there: worker, incarnation, floor and numbers.
    """

    source: str
    run: LoggedRun
    steps: dict[str, int]
    pushes: list[tuple[str, int, int, list[int]]]


@final
class MoveDropped(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """The reshard was aborted."""

    number: int


@final
class Resharded(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """The tables were replaced by the staged ones of the new map."""

    number: int


AnyRecord: TypeAlias = (
    TableMade
    | RunBegun
    | StepPrepared
    | StepCommitted
    | StepAborted
    | ContextApplied
    | Pushed
    | Used
    | RestoreBegun
    | RowsLoaded
    | RestoreEnded
    | MoveBegun
    | TableStaged
    | RowsStaged
    | MarksStaged
    | MoveDropped
    | Resharded
)


@final
class _Body(msgspec.Struct, frozen=True):
    record: AnyRecord
    arrays: list[tuple[str, tuple[int, ...]]]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Body)
_BFLOAT16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
# numpy's names of numbers and bools.
_NUMBERS = re.compile(r"[<>=|][biuf]\d{1,2}")
_names: dict[np.dtype[Any], str] = {}


def encode(number: int, record: AnyRecord, arrays: Sequence[Array]) -> list[bytes | memoryview]:
    """Return the buffers of a record in order; large arrays are not copied."""
    plain = [_plain(array) for array in arrays]
    described = _encoder.encode(_Body(record, [(_name(a.dtype), a.shape) for a in arrays]))
    length = len(described) + sum([array.nbytes for array in plain])
    parts: list[bytes | memoryview]
    if length <= _JOINED_BYTES:
        # Many small arrays cost more as buffers than as one copy.
        parts = [b"".join([described, *[array.data for array in plain]])]
    else:
        parts = [described, *[array.reshape(-1).view(np.uint8).data for array in plain]]
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    checked = _CHECKED.pack(length, len(described), number, checksum)
    head = struct.pack("<II", MAGIC, zlib.crc32(checked)) + checked
    return [head + parts[0]] if length <= _JOINED_BYTES else [head, *parts]


def _plain(array: Array) -> Array:
    """Return an array as contiguous memory of a type that the buffer protocol has."""
    ordered = np.ascontiguousarray(array)
    return ordered.view(np.uint16) if ordered.dtype == _BFLOAT16 else ordered


def _name(dtype: np.dtype[Any]) -> str:
    name = _names.get(dtype)
    if name is None:
        name = _names[dtype] = "bfloat16" if dtype == _BFLOAT16 else dtype.str
    return name


def _dtype(name: str) -> np.dtype[Any]:
    if name == "bfloat16":
        return _BFLOAT16
    if _NUMBERS.fullmatch(name) is None:
        raise ValueError(f"it has an array of {name!r:.40}")
    try:
        return np.dtype(name)
    except TypeError:
        raise ValueError(f"it has an array of {name!r:.40}") from None


@final
class Header(msgspec.Struct, frozen=True):
    """The header of a record.

    Attributes:
        length: Bytes of the body.
        described: Bytes of the description in it.
        number: Number of the record.
        checksum: Checksum of the body.
    """

    length: int
    described: int
    number: int
    checksum: int


def read_header(data: bytes | memoryview) -> Header | None:
    """Return a header, or None if the bytes are not a header."""
    magic, head_sum, length, described, number, checksum = _HEADER.unpack_from(data)
    if magic != MAGIC or zlib.crc32(bytes(data[8:HEADER_BYTES])) != head_sum:
        return None
    if described > length or length > MAX_BODY_BYTES:
        return None
    return Header(length, described, number, checksum)


def read_body(header: Header, body: bytes | memoryview) -> tuple[AnyRecord, list[Array]] | None:
    """Return a record and its arrays; None if the checksum is wrong.

    Raises:
        ValueError: The checksum is right, but the body is not one of this version.
    """
    if zlib.crc32(body) != header.checksum:
        return None
    try:
        found = _decoder.decode(bytes(body[: header.described]))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"its description is not one of this version: {error}") from None
    at, arrays = header.described, []
    for name, shape in found.arrays:
        dtype = _dtype(name)
        if len(shape) > MAX_AXES or any(n < 0 for n in shape):
            raise ValueError(f"it has an array of shape {shape}")
        size = math.prod(shape) * dtype.itemsize
        if size > header.length - at:
            raise ValueError(f"its arrays have more bytes than the {header.length:,} of its body")
        # Arrays are not aligned in the record, so they are copied to aligned memory.
        flat = np.frombuffer(bytearray(body[at : at + size]), dtype, size // dtype.itemsize)
        arrays.append(flat.reshape(shape))
        at += size
    if at != header.length:
        raise ValueError(f"{header.length - at} bytes at its end belong to no array")
    return found.record, arrays

"""The records of a log and their bytes.

A record is a header, a description in MessagePack, and the arrays that it names. Two checksums: one
of the header, so that a length can be trusted, one of the rest.
"""

import struct
import zlib
from collections.abc import Sequence
from typing import Any, TypeAlias, final

import ml_dtypes
import msgspec
import numpy as np

from gradmesh.protos.frame import Array

MAGIC = 0x4C574D47
# Magic, checksum of what follows in the header, length of the body, length of the description,
# number, checksum of the body.
_HEADER = struct.Struct("<IIQIQI")
_CHECKED = struct.Struct("<QIQI")
HEADER_BYTES = _HEADER.size

# Up to this a record is written from one piece of memory.
_JOINED_BYTES = 1 << 18

# A record beyond this was never written: a request is smaller.
MAX_BODY_BYTES = 1 << 34


@final
class TableMade(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """A table began.

    Attributes:
        spec: Its specification, as protobuf.
        owned: Which buckets are here, one bit each.
    """

    spec: bytes
    owned: bytes


@final
class RunBegun(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """A run began, or goes on in another generation.

    Attributes:
        origin: Generation in which it began.
        generation: Of its trainers.
        world_size: How many contributions make a step.
        steps: Steps that it has behind it.
        reset: Tables that went back to their initial rows.
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
    """All gradients of a step are here, merged; arrays are ids and gradients of each table.

    A step that was prepared before it is applied.

    Attributes:
        step: Which one.
        tables: Names.
        applied: Whether it is applied at once: no other server has to prepare it.
    """

    step: int
    tables: list[str]
    applied: bool = False


@final
class StepCommitted(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """The step that was prepared is applied; left out where the next step follows at once."""

    step: int


@final
class StepAborted(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """The step that was prepared is given up."""

    step: int


@final
class ContextApplied(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """A context's gradients are applied; arrays are ids and gradients of each table.

    Attributes:
        context: Worker, incarnation and counter.
        tables: Names.
        rank: In a run without common steps, whose step this is.
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
    """Tables were emptied to be filled."""

    restore: str
    tables: list[str]


@final
class RowsLoaded(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Rows were set; arrays by name."""

    table: str
    names: list[str]


@final
class RestoreEnded(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Tables are open again, with so many steps applied."""

    restore: str
    steps: list[int]


@final
class LoggedRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A run.

    Attributes:
        origin: Generation in which it began.
        generation: Of its trainers.
        world_size: How many they are.
        steps: Steps that are in the rows.
        staleness: As in the record of its beginning.
        own_steps: Of each rank, in a run with staleness.
    """

    origin: int
    generation: int
    world_size: int
    steps: int
    staleness: int | None
    own_steps: list[int]


@final
class MoveBegun(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """A reshard began in which this server takes part; one that had begun is over.

    Attributes:
        number: Of the reshard.
        owned: Which buckets will be here, one bit each.
        kept: Those of them that are here already.
        is_new: Whether this server holds no shard so far.
        servers: How many servers the map to come has; 0 in logs from before it was noted.
    """

    number: int
    owned: bytes
    kept: bytes
    is_new: bool
    servers: int = 0


@final
class TableStaged(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """A table began whose rows will be here after the reshard."""

    spec: bytes


@final
class RowsStaged(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Rows came that will be here after the reshard; arrays by name."""

    table: str
    names: list[str]


@final
class MarksStaged(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """What goes with rows that came.

    Attributes:
        source: The server that they came from.
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
    """The reshard was given up."""

    number: int


@final
class Resharded(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """The tables are those of the new map: rows that were kept and rows that were staged."""

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
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_names: dict[np.dtype[Any], str] = {}


def encode(number: int, record: AnyRecord, arrays: Sequence[Array]) -> list[bytes | memoryview]:
    """Return the parts of a record, to be written one after the other; big ones are not copied."""
    plain = [_plain(array) for array in arrays]
    described = _encoder.encode(_Body(record, [(_name(a.dtype), a.shape) for a in arrays]))
    length = len(described) + sum([array.nbytes for array in plain])
    parts: list[bytes | memoryview]
    if length <= _JOINED_BYTES:
        # Many small arrays cost more as parts than as one copy.
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
    """Return an array whose memory is in order and of a type that Python knows."""
    ordered = np.ascontiguousarray(array)
    return ordered.view(np.uint16) if ordered.dtype == _BFLOAT16 else ordered


def _name(dtype: np.dtype[Any]) -> str:
    name = _names.get(dtype)
    if name is None:
        name = _names[dtype] = "bfloat16" if dtype == _BFLOAT16 else dtype.str
    return name


def _dtype(name: str) -> np.dtype[Any]:
    return _BFLOAT16 if name == "bfloat16" else np.dtype(name)


@final
class Header(msgspec.Struct, frozen=True):
    """What stands before a record.

    Attributes:
        length: Bytes of the body.
        described: Bytes of the description in it.
        number: Of the record.
        checksum: Of the body.
    """

    length: int
    described: int
    number: int
    checksum: int


def read_header(data: bytes | memoryview) -> Header | None:
    """Return a header, or None if the bytes are none."""
    magic, head_sum, length, described, number, checksum = _HEADER.unpack_from(data)
    if magic != MAGIC or zlib.crc32(bytes(data[8:HEADER_BYTES])) != head_sum:
        return None
    if described > length or length > MAX_BODY_BYTES:
        return None
    return Header(length, described, number, checksum)


def read_body(header: Header, body: bytes | memoryview) -> tuple[AnyRecord, list[Array]] | None:
    """Return a record and its arrays, which share the memory; None if the checksum is wrong."""
    if zlib.crc32(body) != header.checksum:
        return None
    found = _decoder.decode(bytes(body[: header.described]))
    at, arrays = header.described, []
    for name, shape in found.arrays:
        dtype = _dtype(name)
        count = int(np.prod(shape, dtype=np.int64))
        # Arrays begin wherever the former ended, so they are copied to where numpy may use them.
        flat = np.frombuffer(bytearray(body[at : at + count * dtype.itemsize]), dtype, count)
        arrays.append(flat.reshape(shape))
        at += count * dtype.itemsize
    return found.record, arrays

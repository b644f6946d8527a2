"""Lane frames: the wire format of hot rpcs on a lane.

A frame is a fixed header, a table that describes the arrays, and the protobuf message without its
arrays. The arrays' elements follow at multiples of 64 in the stream (TCP), or lie in the sender's
shared memory (shm). Everything that a peer claims is checked against a limit first.
"""

import math
import struct
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from gradmesh.protos import limits
from gradmesh.protos.common.v1 import array_pb2
from gradmesh.protos.dtype import WIRE_TO_NUMPY
from gradmesh.protos.errors import InvalidFrame
from gradmesh.protos.frame import Array

VERSION = 1
"""Version of the frames and the handshake; both ends must use the same."""

ALIGN = 64
"""Every array begins at a multiple of this: the size of a cache line and of vector registers."""

SUCCEEDED, FAILED = 0, 1
"""Outcomes: in a response they take the place of the rpc number of a request."""

HEADER = struct.Struct("<HHIIIIIQ")
"""Magic, number, call id, deadline in ms, bytes of head, of table, reserved, of body."""

MAGIC = 0x4D47

_ENTRY = struct.Struct("<BBHIQ")
_MAX_TABLE_BYTES = limits.MAX_ARRAYS * (_ENTRY.size + 8 * limits.MAX_AXES)
_MAX_EXTENT = 2**48
_EXTENT = struct.Struct("<Q")
_SMALL_TABLE = 4096

MAX_PREFIX_BYTES = HEADER.size + _MAX_TABLE_BYTES + limits.MAX_HEAD_BYTES + ALIGN
"""Largest size of a frame without its arrays."""


class FrameHeader(NamedTuple):
    """The fixed part of a frame."""

    magic: int
    number: int
    call: int
    deadline_ms: int
    head_bytes: int
    table_bytes: int
    reserved: int
    body_bytes: int


class ArrayEntry(NamedTuple):
    """Shape, dtype and position of an array in the body of a frame."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int


def aligned(size: int) -> int:
    """Return the next multiple of ALIGN."""
    return (size + ALIGN - 1) & -ALIGN


def read_header(data: Any) -> FrameHeader:
    """Read and check the fixed part of a frame.

    Raises:
        InvalidFrame: The bytes are not a header, or claim more than the limits allow.
    """
    header = FrameHeader._make(HEADER.unpack_from(data))
    if header.magic != MAGIC:
        raise InvalidFrame("these bytes are not a lane frame")
    if header.head_bytes > limits.MAX_HEAD_BYTES or header.table_bytes > _MAX_TABLE_BYTES:
        raise InvalidFrame(
            f"a lane frame claims {header.head_bytes} bytes beside its arrays and "
            f"{header.table_bytes} that describe them; both are bounded",
        )
    return header


# Most frames repeat the shapes of the frames before them.
@lru_cache(maxsize=4096)
def entry(number: int, shape: tuple[int, ...], offset: int) -> bytes:
    """Return the description of an array of element type `number` at `offset` of the body."""
    extents = b"".join(map(_EXTENT.pack, shape))
    return _ENTRY.pack(number, len(shape), 0, 0, offset) + extents


class ArrayTable(NamedTuple):
    """The decoded table of a frame: where its arrays lie.

    Attributes:
        entries: The arrays in order.
        end: End of the last array.
        bools: Indices of the bool arrays, whose bytes must be checked.
    """

    entries: tuple[ArrayEntry, ...]
    end: int
    bools: tuple[int, ...]


def read_table(table: bytes) -> ArrayTable:
    """Read the description of a frame's arrays.

    Raises:
        InvalidFrame: The bytes are not a table, or exceed a limit.
    """
    # The cache is filled by what peers send: only small tables, and few of them.
    return _read_small_table(table) if len(table) <= _SMALL_TABLE else _read_table(table)


@lru_cache(maxsize=1024)
def _read_small_table(table: bytes) -> ArrayTable:
    return _read_table(table)


def _read_table(table: bytes) -> ArrayTable:
    entries: list[ArrayEntry] = []
    bools: list[int] = []
    at = end = 0
    while at < len(table):
        if len(entries) == limits.MAX_ARRAYS:
            raise InvalidFrame(f"more than {limits.MAX_ARRAYS} arrays in one frame")
        found, at, last = _read_entry(table, at, len(entries))
        if found.dtype == np.bool_:
            bools.append(len(entries))
        entries.append(found)
        end = max(end, last)
    return ArrayTable(tuple(entries), end, tuple(bools))


def _read_entry(table: bytes, at: int, index: int) -> tuple[ArrayEntry, int, int]:
    """Return the entry at byte `at`, where it ends, and where its array ends."""
    if at + _ENTRY.size > len(table):
        raise InvalidFrame(f"array {index}: its description is cut off", index=index)
    number, axes, _, _, offset = _ENTRY.unpack_from(table, at)
    dtype = WIRE_TO_NUMPY.get(number)
    stop = at + _ENTRY.size + 8 * axes
    if dtype is None or number == array_pb2.ELEMENT_TYPE_UNSPECIFIED:
        raise InvalidFrame(f"array {index}: unknown element type {number}", index=index)
    if axes > limits.MAX_AXES or stop > len(table):
        raise InvalidFrame(f"array {index}: {axes} axes do not fit its description", index=index)
    shape = struct.unpack_from(f"<{axes}Q", table, at + _ENTRY.size)
    size = math.prod(shape) * dtype.itemsize
    # An extent of 0 makes an array empty; numpy limits the product of the others all the same.
    largest = max(offset, math.prod(extent or 1 for extent in shape) * dtype.itemsize)
    if offset % ALIGN or largest > _MAX_EXTENT:
        raise InvalidFrame(f"array {index}: {shape} at {offset} is beyond the limits", index=index)
    return ArrayEntry(shape, dtype, offset), stop, offset + size


def read_arrays(layout: ArrayTable, buffer: Any, base: int, body_bytes: int) -> list[Array]:
    """Return the arrays of a frame as views of `buffer`, whose body begins at `base`.

    Raises:
        InvalidFrame: An array reaches beyond the body, or a bool array holds other bytes than 0, 1.
    """
    if layout.end > body_bytes:
        raise InvalidFrame(f"an array ends at {layout.end} of a body of {body_bytes} bytes")
    entries = layout.entries
    if len(entries) == 1:
        shape, dtype, offset = entries[0]
        arrays: list[Array] = [np.ndarray(shape, dtype, buffer, base + offset)]
    else:
        arrays = [
            np.ndarray(shape, dtype, buffer, base + offset) for shape, dtype, offset in entries
        ]
    for index in layout.bools:
        if arrays[index].size and arrays[index].view(np.uint8).max() > 1:
            raise InvalidFrame(f"array {index}: a bool other than 0 and 1", index=index)
    return arrays

"""Messages with bulk arrays, as bytes, without copies through the protobuf runtime.

A frame is an ordinary protobuf message whose field 15, `repeated Array arrays`, is written and read
here by hand: the small rest goes through protobuf, each array goes from its memory to the wire in
one copy and is read as a view of the received bytes. A generated client of any language reads and
writes the same bytes. Why not plain protobuf: its `bytes` fields cost two to three times as much.
"""

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Generic, TypeAlias, TypeVar, final

import numpy as np
from google.protobuf.message import DecodeError, Message
from numpy.typing import NDArray

from gradmesh.protos import limits
from gradmesh.protos.common.v1 import array_pb2
from gradmesh.protos.dtype import WIRE_TO_NUMPY, wire_dtype
from gradmesh.protos.errors import InvalidFrame, InvalidRequest
from gradmesh.protos.wireformat import (
    LENGTH,
    VARINT,
    read_field,
    read_varint,
    varint,
)

ARRAYS_FIELD = 15
"""Number of `arrays` in every bulk message."""

Array: TypeAlias = NDArray[Any]
M = TypeVar("M", bound="Message | Serialized")
Received = TypeVar("Received", bound=Message)

_ARRAY_KEY = bytes([ARRAYS_FIELD << 3 | LENGTH])
_DTYPE, _SHAPE, _PADDING, _DATA = 1, 2, 3, 4
_DATA_KEY = bytes([_DATA << 3 | LENGTH])
_ALIGN = 16
_MAX_EXTENT = 2**48
_MAX_SHAPE_BYTES = 10 * limits.MAX_AXES
# An array has four fields, and eight more if its shape is not packed; the others are for later
# versions.
_MAX_FIELDS = 64


@dataclass(slots=True, eq=False)
class Frame(Generic[M]):
    """A message and its arrays.

    Args:
        message: The message without its `arrays`.
        arrays: The arrays. After `decode` they are read-only views of the received bytes.
    """

    message: M
    arrays: list[Array] = field(default_factory=list)


@final
class Serialized:
    """The bytes of a message, for requests that repeat; sent like any other message.

    Args:
        data: The bytes.
    """

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data

    def SerializeToString(self) -> bytes:  # noqa: N802  # as protobuf calls it
        """Return the bytes."""
        return self.data

    def ByteSize(self) -> int:  # noqa: N802  # as protobuf calls it
        """Return the number of bytes."""
        return len(self.data)


def is_bulk(message: type[Message] | Message) -> bool:
    """Return whether a message type carries arrays."""
    found = message.DESCRIPTOR.fields_by_number.get(ARRAYS_FIELD)
    return found is not None and found.name == "arrays"


def encode(frame: Frame[Any], max_bytes: int = limits.MAX_FRAME_BYTES) -> bytes:
    """Return the frame's bytes.

    Args:
        frame: What to send; arrays of any layout and byte order.
        max_bytes: Largest frame; a larger one is refused before memory for it is allocated.

    Raises:
        InvalidRequest: An array's type or number of axes is not part of the contract.
        InvalidFrame: The frame would exceed a limit.
    """
    if len(frame.arrays) > limits.MAX_ARRAYS:
        raise _too_many(len(frame.arrays))
    head: bytes = frame.message.SerializeToString()
    at = len(head)
    if at > limits.MAX_HEAD_BYTES:
        raise head_too_large(at)
    parts: list[Any] = [head]
    for array in frame.arrays:
        if at + array.nbytes > max_bytes:
            raise _too_large(at + array.nbytes, max_bytes)
        prefix, content = _encode_array(array, at)
        parts += (prefix, content)
        at += len(prefix) + content.nbytes
    if at > max_bytes:
        raise _too_large(at, max_bytes)
    return b"".join(parts)


def _encode_array(array: Array, at: int) -> tuple[bytes, Array]:
    """Return the bytes before the elements of an array at byte `at`, and the elements."""
    if array.ndim > limits.MAX_AXES:
        raise InvalidRequest(
            f"an array of {array.ndim} axes cannot be sent; at most {limits.MAX_AXES}",
            axes=array.ndim,
        )
    number = wire_dtype(array.dtype)
    plain = np.asarray(array, dtype=WIRE_TO_NUMPY[number], order="C")
    if number == array_pb2.ELEMENT_TYPE_BFLOAT16:
        plain = plain.view(np.uint16)  # the buffer protocol has no name for bfloat16
    return _prefix(number, plain.shape, plain.nbytes, at % _ALIGN), plain


# Most frames repeat the shapes of the frames before them.
@lru_cache(maxsize=1024)
def _prefix(number: int, shape: tuple[int, ...], size: int, at: int) -> bytes:
    """Return the bytes before `size` bytes of elements, which then lie at a multiple of 16."""
    fixed = bytes((_DTYPE << 3 | VARINT, number))
    if shape:
        extents = b"".join(map(varint, shape))
        fixed += bytes((_SHAPE << 3 | LENGTH, len(extents))) + extents
    length = _DATA_KEY + varint(size)
    body = len(fixed) + 2 + len(length) + size
    width = len(varint(body))
    pad = -(at + 1 + width + body - size) % _ALIGN
    if len(varint(body + pad)) > width:
        pad += _ALIGN - 1  # the padding itself made the body's length one byte longer
    padding = bytes((_PADDING << 3 | LENGTH, pad)) + bytes(pad)
    return _ARRAY_KEY + varint(body + pad) + fixed + padding + length


def decode(
    data: bytes, message_type: type[Received], max_bytes: int = limits.MAX_FRAME_BYTES
) -> Frame[Received]:
    """Read a frame; its arrays are views of `data`.

    Raises:
        InvalidFrame: The bytes are not such a message, or exceed a limit. No memory was allocated
            for sizes that they claim.
    """
    end = len(data)
    if end > max_bytes:
        raise _too_large(end, max_bytes)
    arrays: list[Array] = []
    head: list[bytes] = []
    head_bytes = at = run = 0  # fields since `run` are not arrays and not yet in `head`
    while at < end:
        number, kind, start, stop = read_field(data, at, end)
        if number != ARRAYS_FIELD:
            head_bytes += stop - at
            if head_bytes > limits.MAX_HEAD_BYTES:
                raise head_too_large(head_bytes)
        elif kind != LENGTH:
            raise InvalidFrame(f"field {number} has wire type {kind}, arrays have {LENGTH}")
        elif len(arrays) == limits.MAX_ARRAYS:
            raise _too_many(len(arrays) + 1)
        else:
            head.append(data[run:at])
            run = stop
            arrays.append(_decode_array(data, start, stop, len(arrays)))
        at = stop
    head.append(data[run:end])
    return Frame(parse(b"".join(head), message_type), arrays)


def parse(data: bytes, message_type: type[Received]) -> Received:
    """Read a message without arrays.

    Raises:
        InvalidFrame: The bytes are not such a message.
    """
    if len(data) > limits.MAX_HEAD_BYTES:
        raise head_too_large(len(data))
    try:
        return message_type.FromString(data)
    except DecodeError as error:
        name = message_type.DESCRIPTOR.full_name
        raise InvalidFrame(f"not a {name}: {error}", message_type=name) from None


def _decode_array(data: bytes, at: int, end: int, index: int) -> Array:
    """Return the array described by `data[at:end]`."""
    number = fields = 0
    shape: tuple[int, ...] = ()
    first = last = at
    while at < end:
        name, kind, start, stop = read_field(data, at, end)
        if name == _DATA and kind == LENGTH:
            first, last = start, stop
        elif name == _DTYPE and kind == VARINT:
            number = read_varint(data, start, stop)[0]
        elif name == _SHAPE and kind in (VARINT, LENGTH):
            if stop - start > _MAX_SHAPE_BYTES:
                raise _too_many_axes(index)
            shape += _extents(data[start:stop])
        at = stop
        fields += 1
        if fields > _MAX_FIELDS:
            raise InvalidFrame(f"array {index}: more than {_MAX_FIELDS} fields", index=index)
    if len(shape) > limits.MAX_AXES:
        raise _too_many_axes(index)
    dtype = WIRE_TO_NUMPY.get(number)
    if dtype is None:
        raise InvalidFrame(f"array {index}: unknown element type {number}", index=index)
    count = math.prod(shape)
    if count * dtype.itemsize != last - first:
        raise InvalidFrame(
            f"array {index}: {last - first} bytes of data for {shape} {dtype}, which takes "
            f"{count * dtype.itemsize}",
            index=index,
        )
    try:
        array: Array = np.ndarray(shape, dtype, data, first)
    except ValueError as error:
        raise InvalidFrame(f"array {index}: {error}", index=index) from None
    if number == array_pb2.ELEMENT_TYPE_BOOL and count and array.view(np.uint8).max() > 1:
        raise InvalidFrame(f"array {index}: a bool other than 0 and 1", index=index)
    return array if array.flags.aligned else _aligned(array)


def _aligned(array: Array) -> Array:
    """Return a copy, as read-only as a view of received bytes."""
    copy = array.copy()
    copy.flags.writeable = False
    return copy


@lru_cache(maxsize=1024)
def _extents(packed: bytes) -> tuple[int, ...]:
    """Return the extents of a shape, packed or single."""
    extents: list[int] = []
    at = 0
    while at < len(packed):
        extent, at = read_varint(packed, at, len(packed))
        if extent > _MAX_EXTENT:
            raise InvalidFrame(f"extent {extent} on axis {len(extents)} is beyond the limits")
        extents.append(extent)
    return tuple(extents)


def _too_large(size: int, max_bytes: int) -> InvalidFrame:
    return InvalidFrame(
        f"a frame of {size} bytes exceeds {max_bytes}; split the request or raise max_frame_bytes",
        size=size,
        max_bytes=max_bytes,
    )


def _too_many(count: int) -> InvalidFrame:
    return InvalidFrame(
        f"{count} arrays in one frame, at most {limits.MAX_ARRAYS}; split the request",
        arrays=count,
        max_arrays=limits.MAX_ARRAYS,
    )


def _too_many_axes(index: int) -> InvalidFrame:
    return InvalidFrame(f"array {index}: more than {limits.MAX_AXES} axes", index=index)


def head_too_large(size: int) -> InvalidFrame:
    """Return the error for a message that is too large without its arrays."""
    return InvalidFrame(
        f"a message with {size} bytes beside its arrays exceeds {limits.MAX_HEAD_BYTES}; send bulk "
        "data as arrays",
        size=size,
        max_bytes=limits.MAX_HEAD_BYTES,
    )

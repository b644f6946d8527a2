"""Messages with bulk arrays, as bytes, without copies through the protobuf runtime.

A frame is an ordinary protobuf message whose field 15, `repeated Array arrays`, is written and read
here by hand: the small rest goes through protobuf, each array goes from its memory to the wire in
one copy and is read as a view of the received bytes. A generated client of any language reads and
writes the same bytes. Why not plain protobuf: its `bytes` fields cost two to three times as much.
"""

import math
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
from google.protobuf.message import DecodeError, Message
from numpy.typing import NDArray

from gradmesh.protos import limits
from gradmesh.protos.dtype import numpy_dtype, wire_dtype
from gradmesh.protos.errors import InvalidFrame, InvalidRequest
from gradmesh.protos.wireformat import (
    LENGTH,
    VARINT,
    read_field,
    read_varint,
    varint,
    varint_bytes,
)

ARRAYS_FIELD = 15
"""Number of `arrays` in every bulk message."""

Array: TypeAlias = NDArray[Any]
M = TypeVar("M", bound=Message)

_ARRAY_KEY = bytes([ARRAYS_FIELD << 3 | LENGTH])
_DTYPE, _SHAPE, _PADDING, _DATA = 1, 2, 3, 4
_ALIGN = 16
_MAX_EXTENT = 2**48


@dataclass(frozen=True, slots=True, eq=False)
class Frame(Generic[M]):
    """A message and its arrays.

    Args:
        message: The message without its `arrays`.
        arrays: The arrays. After `decode` they are read-only views of the received bytes.
    """

    message: M
    arrays: list[Array] = field(default_factory=list)


def is_bulk(message: type[Message] | Message) -> bool:
    """Tell whether a message type carries arrays."""
    found = message.DESCRIPTOR.fields_by_number.get(ARRAYS_FIELD)
    return found is not None and found.name == "arrays"


def encode(frame: Frame[Any], max_bytes: int = limits.MAX_FRAME_BYTES) -> bytes:
    """Return the frame's bytes.

    Args:
        frame: What to send; arrays of any layout and byte order.
        max_bytes: Refuse a larger frame.

    Raises:
        InvalidRequest: An array's type or number of axes is not part of the contract.
        InvalidFrame: The frame would be larger than `max_bytes`.
    """
    head: bytes = frame.message.SerializeToString()
    parts: list[Any] = [head]
    at = len(head)
    for array in frame.arrays:
        prefix, content = _encode_array(array, at)
        parts += (prefix, content)
        at += len(prefix) + content.nbytes
    if at > max_bytes or len(frame.arrays) > limits.MAX_ARRAYS:
        raise _too_large(at, max_bytes, len(frame.arrays))
    return b"".join(parts)


def _encode_array(array: Array, at: int) -> tuple[bytes, Array]:
    """Return what precedes the elements when the array stands at byte `at`, and the elements."""
    if array.ndim > limits.MAX_AXES:
        raise InvalidRequest(
            f"an array of {array.ndim} axes cannot be sent; at most {limits.MAX_AXES}",
            axes=array.ndim,
        )
    number = wire_dtype(array.dtype)
    plain = np.asarray(array, dtype=numpy_dtype(number), order="C")
    shape = b"".join(varint(extent) for extent in plain.shape)
    fixed = bytes([_DTYPE << 3 | VARINT, number])
    if shape:
        fixed += bytes([_SHAPE << 3 | LENGTH, len(shape)]) + shape
    length = bytes([_DATA << 3 | LENGTH]) + varint(plain.nbytes)
    # Aligned for a body whose own length takes as many bytes with padding as without; at the rare
    # boundary the array is merely unaligned, and the reader copies it.
    body = len(fixed) + 2 + len(length)
    pad = -(at + 1 + varint_bytes(body + plain.nbytes) + body) % _ALIGN
    fixed += bytes([_PADDING << 3 | LENGTH, pad]) + bytes(pad)
    prefix = _ARRAY_KEY + varint(len(fixed) + len(length) + plain.nbytes) + fixed + length
    return prefix, plain.reshape(-1).view(np.uint8)


def decode(data: bytes, message_type: type[M], max_bytes: int = limits.MAX_FRAME_BYTES) -> Frame[M]:
    """Read a frame; its arrays are views of `data`.

    Raises:
        InvalidFrame: The bytes are no such message, or exceed a limit. Nothing was allocated for
            what they claim beyond their own size.
    """
    if len(data) > max_bytes:
        raise _too_large(len(data), max_bytes, 0)
    arrays: list[Array] = []
    rest: list[bytes] = []
    at, end = 0, len(data)
    while at < end:
        number, kind, start, stop = read_field(data, at, end)
        if number != ARRAYS_FIELD:
            rest.append(data[at:stop])
        elif kind != LENGTH or len(arrays) == limits.MAX_ARRAYS:
            raise InvalidFrame(f"array {len(arrays)}: wrong wire type or too many arrays")
        else:
            arrays.append(_decode_array(data, start, stop, len(arrays)))
        at = stop
    try:
        message = message_type.FromString(b"".join(rest))
    except DecodeError as error:
        name = message_type.DESCRIPTOR.full_name
        raise InvalidFrame(f"not a {name}: {error}", message_type=name) from None
    return Frame(message, arrays)


def _decode_array(data: bytes, at: int, end: int, index: int) -> Array:
    """Return the array described by `data[at:end]`."""
    number = 0
    shape: list[int] = []
    first = last = at
    while at < end:
        name, kind, start, stop = read_field(data, at, end)
        if (name, kind) == (_DTYPE, VARINT):
            number = read_varint(data, start, stop)[0]
        elif name == _SHAPE and kind in (VARINT, LENGTH):
            _read_shape(data, start, stop, shape)
        elif (name, kind) == (_DATA, LENGTH):
            first, last = start, stop
        at = stop
    try:
        dtype = numpy_dtype(number)
    except InvalidRequest as error:
        raise InvalidFrame(f"array {index}: {error.message}", **error.metadata) from None
    count = math.prod(shape)
    if count * dtype.itemsize != last - first:
        raise InvalidFrame(
            f"array {index}: {last - first} bytes of data for {tuple(shape)} {dtype}, which takes "
            f"{count * dtype.itemsize}",
            index=index,
        )
    return _view(data, dtype, count, first, shape, index)


def _read_shape(data: bytes, at: int, end: int, shape: list[int]) -> None:
    """Append the extents in `data[at:end]`, packed or single."""
    while at < end:
        extent, at = read_varint(data, at, end)
        if extent > _MAX_EXTENT or len(shape) == limits.MAX_AXES:
            raise InvalidFrame(f"extent {extent} on axis {len(shape)} is beyond the limits")
        shape.append(extent)


def _view(
    data: bytes, dtype: np.dtype[Any], count: int, first: int, shape: list[int], index: int
) -> Array:
    """Return the elements where they lie; copied only if the sender did not align them."""
    flat: Array = np.frombuffer(data, np.uint8, count * dtype.itemsize, first)
    if dtype == np.bool_ and count and flat.max() > 1:
        raise InvalidFrame(f"array {index}: a truth value other than 0 and 1", index=index)
    if flat.ctypes.data % dtype.alignment:
        flat = flat.copy()
        flat.flags.writeable = False
    try:
        return flat.view(dtype).reshape(shape)
    except ValueError as error:
        raise InvalidFrame(f"array {index}: {error}", index=index) from None


def _too_large(size: int, max_bytes: int, arrays: int) -> InvalidFrame:
    return InvalidFrame(
        f"a frame of {size} bytes with {arrays} arrays exceeds {max_bytes} bytes or "
        f"{limits.MAX_ARRAYS} arrays; split the request or raise max_frame_bytes",
        size=size,
        max_bytes=max_bytes,
    )

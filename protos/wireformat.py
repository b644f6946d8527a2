"""The parts of protobuf's wire format that the frame codec writes and reads by hand."""

from gradmesh.protos.errors import InvalidFrame

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
"""The wire types of proto3; groups (3, 4) are not part of it."""


_ONE_BYTE = [bytes([value]) for value in range(0x80)]


def varint(value: int) -> bytes:
    """Encode a non-negative integer, seven bits a byte, lowest first."""
    if value < 0x80:
        return _ONE_BYTE[value]
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Decode the integer at `at`; return it and the position after it.

    Raises:
        InvalidFrame: It runs over `end` or over 64 bits.
    """
    result = shift = 0
    while at < end:
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            if result >= 1 << 64:
                break
            return result, at
        shift += 7
        if shift > 63:
            break
    raise InvalidFrame(f"truncated or oversized integer at byte {at} of {len(data)}", position=at)


def read_field(data: bytes, at: int, end: int) -> tuple[int, int, int, int]:
    """Decode the field at `at`, which is before `end`, without copying what it holds.

    Returns:
        Field number, wire type, where its content begins and where it ends. The content of a varint
        is the varint itself; of a length-delimited field what follows the length.

    Raises:
        InvalidFrame: The field is malformed or runs over `end`.
    """
    key = data[at]
    at += 1
    if key > 0x7F:
        key, at = read_varint(data, at - 1, end)
    kind = key & 7
    if kind == LENGTH:
        # Most lengths take one byte; a call of read_varint would cost as much as all the rest.
        if at < end and data[at] < 0x80:
            size = data[at]
            at += 1
        else:
            size, at = read_varint(data, at, end)
        stop = at + size
    elif kind == VARINT:
        stop = at + 1 if at < end and data[at] < 0x80 else read_varint(data, at, end)[1]
    elif kind == FIXED64:
        stop = at + 8
    elif kind == FIXED32:
        stop = at + 4
    else:
        raise InvalidFrame(f"wire type {kind} at byte {at}", position=at)
    if key < 8:
        raise InvalidFrame(f"field number 0 at byte {at}", position=at)
    if stop > end:
        raise InvalidFrame(
            f"truncated: field {key >> 3} ends at byte {stop}, the message at {end}", position=at
        )
    return key >> 3, kind, at, stop

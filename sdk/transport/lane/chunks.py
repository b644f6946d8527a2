"""Lane frames as the messages of a gRPC stream: `bytes data = 1`, written and read by hand.

A big frame goes in several messages, so that one is copied out while the next is on its way.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from gradmesh.protos.owner.v1 import owner_pb2 as pb
from gradmesh.protos.wireformat import LENGTH, read_varint, varint
from gradmesh.sdk.transport.lane.stream import LaneBroken

CHUNK_BYTES = 1 << 20
"""Most bytes of a frame in one message."""

_KEY = pb.ExchangeRequest.DESCRIPTOR.fields_by_name["data"].number << 3 | LENGTH
_KEY_BYTES = bytes([_KEY])


def to_messages(parts: Sequence[Any]) -> Iterator[bytes]:
    """Yield the messages of a frame, each made when it is asked for."""
    if len(parts) == 1 and len(parts[0]) <= CHUNK_BYTES:
        yield b"".join((_KEY_BYTES, varint(len(parts[0])), parts[0]))
        return
    held: list[memoryview] = []
    size = 0
    for part in parts:
        view = memoryview(part)
        if not view.nbytes:
            continue  # memory without elements cannot be seen as bytes
        view = view.cast("B")
        while size + len(view) > CHUNK_BYTES:
            held.append(view[: CHUNK_BYTES - size])
            view = view[CHUNK_BYTES - size :]
            yield b"".join((_KEY_BYTES, varint(CHUNK_BYTES), *held))
            held, size = [], 0
        if len(view):
            held.append(view)
            size += len(view)
    if held:
        yield b"".join((_KEY_BYTES, varint(size), *held))


def data_of(message: bytes) -> memoryview:
    """Return the bytes that a message carries.

    Raises:
        LaneBroken: It carries none, or is not written as we write it.
    """
    if len(message) > 2 and message[0] == _KEY:
        size, begin = read_varint(message, 1, len(message))
        if begin + size == len(message):
            return memoryview(message)[begin:]
    raise LaneBroken("a message of the stream that is no part of a frame")

"""Lane frames as the messages of a gRPC stream: `bytes data = 1`.

A big frame goes in several messages, so that one is copied out while the next is on its way.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from google.protobuf.message import DecodeError

from gradmesh.protos.owner.v1 import owner_pb2 as pb
from gradmesh.protos.wireformat import LENGTH, varint
from gradmesh.sdk.transport.lane.stream import LaneBroken

CHUNK_BYTES = 1 << 20
"""Most bytes of a frame in one message."""

# Requests and responses are written alike.
_read = pb.ExchangeRequest.FromString
_KEY = bytes([pb.ExchangeRequest.DESCRIPTOR.fields_by_name["data"].number << 3 | LENGTH])


def to_messages(parts: Sequence[Any]) -> Iterable[bytes]:
    """Return the messages of a frame; of a big one, each is made when it is asked for."""
    size = 0
    for part in parts:
        size += part.nbytes if hasattr(part, "nbytes") else len(part)
    if size <= CHUNK_BYTES:
        return (b"".join((_KEY, varint(size), *parts)),)
    return _cut(parts)


def _cut(parts: Sequence[Any]) -> Iterator[bytes]:
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
            yield b"".join((_KEY, varint(CHUNK_BYTES), *held))
            held, size = [], 0
        if len(view):
            held.append(view)
            size += len(view)
    if held:
        yield b"".join((_KEY, varint(size), *held))


def data_of(message: bytes) -> bytes:
    """Return the bytes that a message carries, at least one.

    Raises:
        LaneBroken: It carries none.
    """
    try:
        data = _read(message).data
    except DecodeError:
        data = b""
    if not data:
        raise LaneBroken("a message of the stream that is no part of a frame")
    return data

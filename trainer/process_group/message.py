"""Messages between ranks: the header of a frame, and the shutdown message of a rank that leaves.

A frame is a fixed header and a payload of known size. The header names the collective in words, so
that ranks that call different collectives detect it instead of misreading each other's bytes.
"""

import struct
from enum import IntEnum, unique
from typing import Final, NamedTuple, final

from gradmesh.protos.printable import printable
from gradmesh.trainer.errors import (
    CollectiveMismatch,
    CollectiveTimeout,
    GroupClosed,
    PeerLost,
)


@final
@unique
class MessageKind(IntEnum):
    """Data, or the reason why a rank leaves the group."""

    DATA = 1
    CLOSED = 2
    ABORTED = 3
    TIMED_OUT = 4
    PEER_LOST = 5
    MISMATCH = 6


def shutdown_reason(error: Exception | None, rank: int) -> tuple[MessageKind, int]:
    """Return the reason that rank `rank` sends to its peers, and the rank it is about."""
    match error:
        case PeerLost(rank=about):
            return MessageKind.PEER_LOST, about
        case CollectiveTimeout(ranks=ranks):
            return MessageKind.TIMED_OUT, ranks[0] if ranks else rank
        case CollectiveMismatch():
            return MessageKind.MISMATCH, rank
        case GroupClosed():
            return MessageKind.CLOSED, rank
        case _:
            return MessageKind.ABORTED, rank


def shutdown_error(kind: MessageKind, about: int, rank: int, address: str) -> Exception:
    """Return the error for a shutdown message of rank `rank` at `address`."""
    if kind is MessageKind.MISMATCH:
        return CollectiveMismatch(
            f"rank {rank} ({address}) saw ranks call different collectives; its error says which"
        )
    if kind is MessageKind.TIMED_OUT:
        return CollectiveTimeout(
            f"rank {rank} ({address}) gave up waiting for rank {about};"
            f" see whether rank {about} still runs, then rejoin",
            ranks=[about],
        )
    if kind is MessageKind.PEER_LOST and about != rank:
        return PeerLost(
            f"rank {rank} ({address}) lost rank {about}; rejoin to continue in the next generation",
            rank=about,
            address=f"rank {about}",
        )
    return peer_lost(rank, address, f"it left the group ({kind.name.lower()})")


def peer_lost(rank: int, address: str, why: str) -> PeerLost:
    """Return the error for a rank that is gone."""
    return PeerLost(
        f"lost rank {rank} at {address}: {why}; rejoin to continue in the next generation",
        rank=rank,
        address=address,
    )


_HEADER: Final = struct.Struct("<4sBxxxqQ72s")
_MAGIC: Final = b"GMPG"
_TEXT_BYTES: Final = 72

HEADER_BYTES: Final = _HEADER.size


@final
class MessageHeader(NamedTuple):
    """The header of a frame."""

    kind: MessageKind
    """Data, or a reason for the shutdown."""
    number: int
    """The sequence number of data on this link; for a shutdown, the rank it is about."""
    payload_bytes: int
    """Length of the payload that follows."""
    text: str
    """The collective in words, such as `all_reduce(sum) of 5 float32`."""


def pack_header(header: MessageHeader) -> bytes:
    """Return the header's bytes; a longer text is truncated."""
    text = header.text.encode("ascii", "replace")[:_TEXT_BYTES]
    return _HEADER.pack(_MAGIC, header.kind, header.number, header.payload_bytes, text)


def unpack_header(data: bytes | bytearray) -> MessageHeader:
    """Parse a header.

    Raises:
        ValueError: The bytes are not a header.
    """
    if len(data) != HEADER_BYTES:
        raise ValueError(f"a frame starts with {HEADER_BYTES} bytes, not {len(data)}")
    magic, kind, number, payload_bytes, text = _HEADER.unpack(data)
    if magic != _MAGIC:
        raise ValueError(f"not a frame of this protocol: it starts with {magic!r}")
    shown = printable(text.rstrip(b"\0").decode("ascii", "replace"))
    return MessageHeader(MessageKind(kind), number, payload_bytes, shown)

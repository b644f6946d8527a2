"""A frame that arrives before this rank expects it."""

from typing import final

from gradmesh.trainer.errors import CollectiveMismatch
from gradmesh.trainer.process_group.collective import Segments
from gradmesh.trainer.process_group.message import HEADER_BYTES, MessageHeader

MAX_EARLY_BYTES = 1 << 32
"""What may arrive from one peer before this rank expects it; more ends the group."""

_FIRST_BYTES = 1 << 20


@final
class EarlyFrame:
    """Keeps the payload of an early frame.

    Its size is not agreed yet. So memory grows with what has arrived, not with what the peer
    announces.

    Args:
        header: The header of the frame.

    Attributes:
        arrived: Bytes of the payload that have arrived.
    """

    def __init__(self, header: MessageHeader) -> None:
        self.header = header
        self.arrived = 0
        self._chunks: list[memoryview] = []
        self._size = 0

    @property
    def cost(self) -> int:
        """Bytes that it takes when it is complete."""
        return HEADER_BYTES + self.header.payload_bytes

    def grow(self) -> list[memoryview]:
        """Return memory for the next bytes, when all before have arrived; none at the end."""
        count = min(self.header.payload_bytes - self._size, max(_FIRST_BYTES, self._size))
        if not count:
            return []
        self._chunks.append(memoryview(bytearray(count)))
        self._size += count
        return [self._chunks[-1]]

    def copy_to(self, segments: Segments) -> list[memoryview]:
        """Copy what has arrived to the beginning of `segments`; return those left to fill."""
        left, rest = self.arrived, list(segments)
        for chunk in self._chunks:
            data = chunk[: min(left, chunk.nbytes)]
            left -= data.nbytes
            while data.nbytes and rest:
                count = min(data.nbytes, rest[0].nbytes)
                rest[0][:count] = data[:count]
                data, rest = data[count:], drop_bytes(rest, count)
        return rest


def too_early(peer: str, count: int) -> CollectiveMismatch:
    """Return the error for a peer that sends more than is kept for later."""
    return CollectiveMismatch(
        f"{peer} sent {count} bytes that this rank does not expect yet, at most"
        f" {MAX_EARLY_BYTES} are kept; all ranks must call the same collectives in the same order"
    )


def drop_bytes(segments: list[memoryview], count: int) -> list[memoryview]:
    """Drop the first `count` bytes of `segments`, and the segments that are empty then."""
    while segments and count >= segments[0].nbytes:
        count -= segments[0].nbytes
        segments = segments[1:]
    return [segments[0][count:], *segments[1:]] if count else segments

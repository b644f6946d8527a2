"""Links: one connection of a lane, from either end, that sends and receives frames in turn.

A `ShmLink` passes arrays in shared memory; an `InlineLink` sends them behind the head.
"""

import mmap
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple, final

import numpy as np

from gradmesh.protos import limits
from gradmesh.protos.common.v1 import array_pb2
from gradmesh.protos.dtype import WIRE_TO_NUMPY, wire_dtype
from gradmesh.protos.errors import InvalidFrame, InvalidRequest
from gradmesh.protos.frame import Array, head_too_large
from gradmesh.protos.lane import (
    HEADER,
    MAGIC,
    MAX_PREFIX_BYTES,
    FrameHeader,
    aligned,
    entry,
    read_arrays,
    read_header,
    read_shared_arrays,
    read_table,
)
from gradmesh.sdk.transport.lane.arena import BIG_BYTES, Arena
from gradmesh.sdk.transport.lane.stream import ByteStream, LaneBroken

FOREVER = float("inf")

SMALL_BYTES = 8192
"""Most requests and responses on a unix socket are smaller."""

# A frame that has begun to arrive must be complete within this time, at this rate at least.
_FRAME_S = 30.0
_SLOWEST_BYTES_S = 2e6
_HEADER_BYTES = HEADER.size
_PADS = [bytes(size) for size in range(64)]


class Received(NamedTuple):
    """A frame that arrived.

    Attributes:
        number: The number of the rpc in a request, the outcome in a response.
        call: Number of the call on this connection.
        deadline_ms: How long the client waits.
        head: The message without its arrays.
        arrays: Borrowed: valid until the next frame arrives on this connection. In shared memory
            the peer can change floats at any time; integers and bools are copies.
        size: Bytes of head and arrays.
    """

    number: int
    call: int
    deadline_ms: int
    head: bytes
    arrays: list[Array]
    size: int


class Link(ABC):
    """A connection of a lane; used by one thread at a time, except for `close`.

    Args:
        kind: The lane, "shm", "tcp" or "stream", for messages and metrics.
        stream: The connection.
        arena: Memory for arrays to be sent.
        inbox: Memory that receives frames, of the size of the largest allowed.
        max_frame_bytes: Largest frame either way.
    """

    def __init__(
        self, kind: str, stream: ByteStream, arena: Arena, inbox: mmap.mmap, max_frame_bytes: int
    ) -> None:
        self.kind = kind
        self.stream = stream
        self.arena = arena
        self.calls = 0
        # Whether a large frame used memory that is worth releasing.
        self.big = False
        self._inbox = inbox
        # What is received is read-only, as it is from gRPC.
        self._view = memoryview(inbox)
        self._frozen = self._view.toreadonly()
        self._max = max_frame_bytes
        # The largest body of a frame that can be received.
        self._most = max_frame_bytes

    def send(
        self,
        number: int,
        call: int,
        deadline_ms: int,
        head: bytes,
        arrays: Sequence[Array],
        deadline: float,
    ) -> int:
        """Send a frame; return the bytes of head and arrays.

        Raises:
            InvalidRequest: An array cannot be sent, or the frame is too large; nothing was sent.
            TimeoutError: The peer did not read it in time.
            LaneBroken: The connection is gone.
        """
        if len(head) > limits.MAX_HEAD_BYTES:
            raise head_too_large(len(head))
        if len(arrays) > limits.MAX_ARRAYS:
            raise InvalidFrame(f"{len(arrays)} arrays in one frame, at most {limits.MAX_ARRAYS}")
        table, body, parts = self._lay_out(arrays)
        if len(head) + body > self._max:
            raise InvalidFrame(
                f"a frame of {len(head) + body} bytes exceeds {self._max}; split the request or "
                "raise max_frame_bytes",
                size=len(head) + body,
                max_bytes=self._max,
            )
        if body > BIG_BYTES:
            self.big = True
        header = HEADER.pack(MAGIC, number, call, deadline_ms, len(head), len(table), 0, body)
        prefix = b"".join((header, table, head))
        if parts:
            self.stream.send([prefix, _PADS[-len(prefix) % 64], *parts], deadline)
        else:
            self.stream.send((prefix,), deadline)
        return len(head) + body

    @abstractmethod
    def _lay_out(self, arrays: Sequence[Array]) -> tuple[bytes, int, list[Any]]:
        """Return the table of the arrays, the size of the body, and the parts to send inline."""

    def receive(self, deadline: float) -> Received:
        """Wait for the next frame.

        Raises:
            InvalidFrame: The bytes are not a frame; the connection cannot be used further.
            TimeoutError: Nothing arrived in time.
            LaneBroken: The connection is gone.
        """
        return self._receive_from(self.stream.receive(self._view, deadline), deadline)

    def _receive_small(self, shared: Any, deadline: float) -> Received:
        """Receive a frame that is probably small, without copying it through the inbox.

        Args:
            shared: The peer's memory, which holds the arrays; None if they follow inline.
            deadline: As for `receive`.
        """
        data = self.stream.receive_bytes(SMALL_BYTES, deadline)
        size = len(data)
        if size < _HEADER_BYTES or (shared is not None and size == SMALL_BYTES):
            return self._receive_rest(data, deadline)
        magic, number, call, deadline_ms, head_bytes, table_bytes, _, body = HEADER.unpack_from(
            data
        )
        split = _HEADER_BYTES + table_bytes
        end = split + head_bytes
        base = 0
        if shared is None and body:
            base = (end + 63) & -64
            end = base + body
        if magic != MAGIC or size != end or body > self._most:
            return self._receive_rest(data, deadline)
        arrays: list[Array] = []
        if table_bytes:
            layout = read_table(data[_HEADER_BYTES:split])
            if shared is None:
                arrays = read_arrays(layout, data, base, body)
            else:
                arrays = read_shared_arrays(layout, shared, body)
        head = data[split : split + head_bytes]
        return Received(number, call, deadline_ms, head, arrays, head_bytes + body)

    def _receive_rest(self, data: bytes, deadline: float) -> Received:
        """Receive the rest of a frame that did not arrive in one piece, or refuse it."""
        self._view[: len(data)] = data
        return self._receive_from(len(data), deadline)

    def _receive_from(self, have: int, deadline: float) -> Received:
        """Receive the rest of a frame of which `have` bytes are in the inbox."""
        if have < HEADER.size:
            have = self._fill(have, HEADER.size, deadline)
        header = read_header(self._frozen)
        if header.body_bytes > self._max:
            raise InvalidFrame(
                f"a frame of {header.body_bytes} bytes exceeds {self._max}; raise max_frame_bytes"
            )
        table_end = HEADER.size + header.table_bytes
        head_end = table_end + header.head_bytes
        end = self._end(head_end, header)
        if end > BIG_BYTES:
            self.big = True
        if have < end:
            have = self._fill(have, end, deadline)
        if have != end:
            raise InvalidFrame("bytes after the frame: one call at a time on a connection")
        arrays = self._read(header, bytes(self._frozen[HEADER.size : table_end]), head_end)
        return Received(
            header.number,
            header.call,
            header.deadline_ms,
            bytes(self._frozen[table_end:head_end]),
            arrays,
            header.head_bytes + header.body_bytes,
        )

    def _fill(self, have: int, need: int, deadline: float) -> int:
        limit = min(deadline, time.monotonic() + _FRAME_S + need / _SLOWEST_BYTES_S)
        try:
            while have < need:
                have += self.stream.receive(self._view[have:], limit)
        except TimeoutError:
            raise LaneBroken("the peer stopped in the middle of a frame") from None
        return have

    @abstractmethod
    def _end(self, head_end: int, header: FrameHeader) -> int:
        """Return how many bytes of the frame are sent inline."""

    @abstractmethod
    def _read(self, header: FrameHeader, table: bytes, head_end: int) -> list[Array]:
        """Return the arrays of the frame that has arrived."""

    def trim(self) -> None:
        """Release memory of earlier large frames to the system."""
        self.big = False
        self.arena.trim()

    def close(self) -> None:
        """Close the connection; its memory is freed with its last reader. May be called twice."""
        self.stream.close()
        self.arena.close_fd()


@final
class ShmLink(Link):
    """Passes arrays in shared memory, one arena per direction; a unix socket carries the rest.

    Args:
        stream: The unix socket.
        arena: Our memory, mapped by the peer.
        peer: The peer's arena, read-only.
        max_frame_bytes: Largest frame either way.
    """

    def __init__(
        self, stream: ByteStream, arena: Arena, peer: mmap.mmap, max_frame_bytes: int
    ) -> None:
        inbox = mmap.mmap(-1, MAX_PREFIX_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        super().__init__("shm", stream, arena, inbox, max_frame_bytes)
        self._peer = peer
        self._peer_bytes = len(peer)
        self._most = min(max_frame_bytes, len(peer))

    def _lay_out(self, arrays: Sequence[Array]) -> tuple[bytes, int, list[Any]]:
        arena = self.arena
        if len(arrays) == 1:
            table = arena.place(arrays[0])
        else:
            table = b"".join([arena.place(array) for array in arrays])
        return table, arena.used if arrays else 0, []

    def receive(self, deadline: float) -> Received:
        """Wait for the next frame, as `Link.receive` does."""
        return self._receive_small(self._peer, deadline)

    def _end(self, head_end: int, header: FrameHeader) -> int:
        return head_end

    def _read(self, header: FrameHeader, table: bytes, head_end: int) -> list[Array]:
        if not table:
            return []
        if header.body_bytes > self._peer_bytes:
            raise InvalidFrame(f"a body of {header.body_bytes} bytes in {self._peer_bytes}")
        return read_shared_arrays(read_table(table), self._peer, header.body_bytes)


@final
class InlineLink(Link):
    """Sends everything through one byte stream; frames arrive in pieces of any size.

    Args:
        stream: A TCP socket, with or without TLS, or a gRPC stream.
        max_frame_bytes: Largest frame either way.
        kind: The lane, "tcp" or "stream".
    """

    def __init__(self, stream: ByteStream, max_frame_bytes: int, kind: str = "tcp") -> None:
        inbox = mmap.mmap(
            -1, MAX_PREFIX_BYTES + max_frame_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        )
        super().__init__(kind, stream, Arena(max_frame_bytes, shared=False), inbox, max_frame_bytes)

    def _lay_out(self, arrays: Sequence[Array]) -> tuple[bytes, int, list[Any]]:
        entries: list[bytes] = []
        parts: list[Any] = []
        at = 0
        for array in arrays:
            if array.ndim > limits.MAX_AXES:
                raise InvalidRequest(f"an array of {array.ndim} axes cannot be sent")
            number = wire_dtype(array.dtype)
            start = aligned(at) if array.nbytes else 0
            entries.append(entry(number, array.shape, start))
            if array.nbytes:
                plain = np.asarray(array, dtype=WIRE_TO_NUMPY[number], order="C")
                if number == array_pb2.ELEMENT_TYPE_BFLOAT16:
                    plain = plain.view(np.uint16)  # the buffer protocol has no name for bfloat16
                parts += (_PADS[start - at], plain)
                at = start + array.nbytes
        return b"".join(entries), at, parts

    def _end(self, head_end: int, header: FrameHeader) -> int:
        return aligned(head_end) + header.body_bytes if header.body_bytes else head_end

    def _read(self, header: FrameHeader, table: bytes, head_end: int) -> list[Array]:
        if not table:
            return []
        return read_arrays(read_table(table), self._frozen, aligned(head_end), header.body_bytes)

    def receive(self, deadline: float) -> Received:
        """Wait for the next frame, as `Link.receive` does."""
        if self.kind == "stream":
            return self._receive_small(None, deadline)
        return super().receive(deadline)

    def trim(self) -> None:
        """Release memory of earlier large frames to the system."""
        super().trim()
        self._inbox.madvise(mmap.MADV_DONTNEED)

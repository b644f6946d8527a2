"""Connections of lanes that send bytes that no client sends."""

from __future__ import annotations

import contextlib
import queue
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np

from gradmesh.protos.errors import InvalidFrame
from gradmesh.protos.lane import HEADER, VERSION, read_header
from gradmesh.protos.owner.v1 import owner_pb2 as pb
from gradmesh.sdk.cluster.servers import METHODS
from gradmesh.sdk.transport.channel import Channel
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.sdk.transport.lane.grpc_stream import EXCHANGE, VERSION_METADATA
from gradmesh.sdk.transport.lane.handshake import WIRE_KINDS, greet, host_identity
from gradmesh.sdk.transport.lane.link import Link
from tests.conformance.raw_lane import dial
from tests.fuzz.callers import MAX_FRAME_BYTES, metadata_of
from tests.fuzz.lane_frames import LaneFrame

_OPEN_S = 20.0
_STREAM_S = 300.0

Answer = tuple[int, int, bytes]
"""Outcome, call and message of a response."""


class LaneConnection(ABC):
    """One connection, for one frame at a time."""

    @abstractmethod
    def send(self, frame: LaneFrame) -> None:
        """Send a frame as it is; raise OSError if the server has closed the connection."""

    @abstractmethod
    def receive(self, timeout_s: float) -> Answer | None:
        """Return the next response; None when the server has closed the connection.

        Raises:
            TimeoutError: Neither happened.
        """

    @abstractmethod
    def finish(self) -> None:
        """Send no more: the server sees the end of a frame that claims to be longer."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""


def offer_of(channel: Channel, kind: str) -> pb.OpenLaneResponse:
    """Return an offer of the server to open a connection."""
    request = pb.OpenLaneRequest(kinds=[WIRE_KINDS[kind]], host=host_identity(), version=VERSION)
    answer: pb.OpenLaneResponse = channel.call(
        METHODS["OpenLane"], request, Deadline.after(_OPEN_S)
    )
    return answer


class SocketLane(LaneConnection):
    """A connection of the lane `tcp` or `shm`, after a genuine handshake.

    Args:
        channel: The channel of the caller.
        kind: The lane.

    Attributes:
        shared: The arrays of the last frame, in memory that the server reads.
    """

    def __init__(self, channel: Channel, kind: str) -> None:
        offer = offer_of(channel, kind)
        self._kind = kind
        self._link: Link = greet(dial(kind, offer.address), kind, offer.secret, MAX_FRAME_BYTES)
        self._sock: socket.socket = self._link.stream.sock  # type: ignore[attr-defined]
        self.shared: Any = None

    def send(self, frame: LaneFrame) -> None:
        if self._kind == "tcp":
            self._sock.sendall(frame.inline)
            return
        self._link.arena.begin()
        if frame.body:
            place = self._link.arena.empty((len(frame.body),), np.uint8)
            place[:] = np.frombuffer(frame.body, np.uint8)
            self.shared = place
        self._sock.sendall(frame.prefix)

    def receive(self, timeout_s: float) -> Answer | None:
        try:
            answer = self._link.receive(time.monotonic() + timeout_s)
        except TimeoutError:
            raise
        except OSError:
            return None
        return answer.number, answer.call, answer.head

    def finish(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._link.close()


class StreamLane(LaneConnection):
    """A stream of the rpc Exchange.

    Args:
        channel: The channel of the caller.
        pieces: How many messages a frame is cut into.
    """

    def __init__(self, channel: Channel, pieces: int) -> None:
        self._pieces = pieces
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        metadata = (*metadata_of(channel), VERSION_METADATA)
        stream = channel._channel.stream_stream(EXCHANGE.path)
        self._call: Any = stream(
            iter(self._requests.get, None), timeout=_STREAM_S, metadata=metadata
        )
        self._messages: Iterator[bytes] = self._data_of(self._call)

    @staticmethod
    def _data_of(messages: Any) -> Iterator[bytes]:
        for message in messages:
            yield pb.ExchangeResponse.FromString(message).data

    def send(self, frame: LaneFrame) -> None:
        if not self._call.is_active():
            raise ConnectionError("the server has ended the stream")
        data = frame.inline
        size = -(-len(data) // self._pieces) or 1
        for begin in range(0, len(data), size):
            piece = pb.ExchangeRequest(data=data[begin : begin + size])
            self._requests.put(piece.SerializeToString())

    def send_message(self, message: bytes) -> None:
        """Send a message that need not be one of the stream."""
        self._requests.put(message)

    def receive(self, timeout_s: float) -> Answer | None:
        # The deadline of the stream ends a wait for ever; it is reported as a timeout.
        try:
            data = next(self._messages, None)
            if data is None:
                return None
            header = read_header(data)
            begin = HEADER.size + header.table_bytes
            end = begin + header.head_bytes
            whole = begin + header.head_bytes + header.body_bytes
            while len(data) < whole and (more := next(self._messages, None)) is not None:
                data += more
            return header.number, header.call, data[begin:end]
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise TimeoutError("the stream got no response") from None
            if error.code() in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN):
                raise InvalidFrame(
                    f"the stream ends with {error.code()}: {error.details()}"
                ) from None
            return None

    def finish(self) -> None:
        self._requests.put(None)

    def close(self) -> None:
        self._requests.put(None)
        self._call.cancel()

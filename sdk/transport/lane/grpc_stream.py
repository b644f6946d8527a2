"""The lane `stream`: both ends of a long-lived gRPC stream, the rpc Exchange.

A message on a stream takes gRPC a third less time than a call. gRPC has no deadline for a message,
so a watchdog ends the streams whose response is late. Frames are sent as messages `bytes data = 1`;
a large frame takes several, so that one is copied out while the next is on its way.
"""

import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar, final

import grpc
from google.protobuf.message import DecodeError

from gradmesh.protos.lane import VERSION
from gradmesh.protos.method import methods_of
from gradmesh.protos.owner.v1 import owner_pb2 as pb
from gradmesh.protos.wireformat import LENGTH, varint
from gradmesh.sdk.transport.lane.direct_call import DirectCall
from gradmesh.sdk.transport.lane.stream import ByteStream, LaneBroken
from gradmesh.sdk.transport.watchdog import Watchdog

CHUNK_BYTES = 1 << 20
"""Most bytes of a frame in one message."""

# Requests and responses have the same bytes.
_read = pb.ExchangeRequest.FromString
_KEY = bytes([pb.ExchangeRequest.DESCRIPTOR.fields_by_name["data"].number << 3 | LENGTH])


def to_messages(parts: Sequence[Any]) -> Iterable[bytes]:
    """Return the messages of a frame: a tuple of one, or a generator for a large frame."""
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
            continue  # an empty buffer cannot be cast to bytes
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
        LaneBroken: It carries none, or is not a message of the stream.
    """
    try:
        data = _read(message).data
    except DecodeError:
        data = b""
    if not data:
        raise LaneBroken("a message of the stream that is not part of a frame")
    return data


EXCHANGE = methods_of(pb.DESCRIPTOR.services_by_name["OwnerService"])["Exchange"]
"""The rpc of the stream; every server serves it without a servicer."""

VERSION_METADATA = ("gradmesh-lane-version", str(VERSION))
"""Metadata that both ends send when a stream is opened."""

_T = TypeVar("_T")
_NOTHING = memoryview(b"")


class MessageStream(ByteStream):
    """Bytes carried in messages."""

    def __init__(self) -> None:
        self._rest = _NOTHING

    def receive(self, view: Any, deadline: float) -> int:
        """Read some bytes into `view`."""
        rest = self._rest or memoryview(data_of(self._next(deadline)))
        count = min(len(view), len(rest))
        view[:count] = rest[:count]
        self._rest = rest[count:]
        return count

    def receive_bytes(self, limit: int, deadline: float) -> bytes:
        """Read the bytes of one message, whatever the limit."""
        if self._rest:
            rest, self._rest = bytes(self._rest), _NOTHING
            return rest
        return data_of(self._next(deadline))

    @abstractmethod
    def _next(self, deadline: float) -> bytes:
        """Wait for a message.

        Raises:
            TimeoutError: None arrived in time.
            LaneBroken: The stream has ended.
        """


@final
class ClientStream(MessageStream):
    """The client's end.

    Args:
        call: The rpc, started.
        watchdog: Ends it when a response is late.
    """

    def __init__(self, call: DirectCall, watchdog: "Watchdog[ClientStream]") -> None:
        super().__init__()
        self._watchdog = watchdog
        self._expired = False
        self._call = call

    def open(self, deadline: float) -> None:
        """Wait until the server has accepted the stream.

        Raises:
            TimeoutError: It did not in time.
            LaneBroken: It refused.
        """
        metadata = self._within(deadline, self._call.initial_metadata)
        if VERSION_METADATA not in [(key, value) for key, value in metadata]:
            raise LaneBroken(f"no stream: {self._call.end}")

    def send(self, parts: Sequence[Any], deadline: float) -> None:
        """Pass all parts to gRPC."""
        if time.monotonic() >= deadline:
            raise TimeoutError("the deadline passed")
        messages = to_messages(parts)
        if isinstance(messages, tuple):
            self._within(deadline, self._call.ask, *messages)
        else:
            self._within(deadline, self._call.send, messages)

    def _next(self, deadline: float) -> bytes:
        return self._within(deadline, self._call.receive)

    def _within(self, deadline: float, action: Callable[..., _T], *args: Any) -> _T:
        """Call `action`, which returns at the latest when the stream ends, under the deadline."""
        self._watchdog.begin(self, deadline)
        try:
            return action(*args)
        except LaneBroken:
            if self._expired:
                raise TimeoutError("no answer in time") from None
            raise
        finally:
            self._watchdog.end(self)

    def expire(self) -> None:
        """End the stream because its response is late."""
        self._expired = True
        self.close()

    def stop_receiving(self) -> None:
        """End the stream: it cannot be half closed."""
        self.close()

    def close(self) -> None:
        """End the stream, also under a thread that waits for a response."""
        self._call.cancel()


@final
class ServerStream(MessageStream):
    """The server's end.

    Args:
        requests: The messages that arrive.
        context: Of the rpc.

    Attributes:
        response: The messages to yield to gRPC.
    """

    def __init__(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> None:
        super().__init__()
        self._requests = requests
        self._context = context
        self._lock = threading.Lock()  # guards _waiting and _stopped
        self._waiting = False
        self._stopped = False
        self.response: Iterable[bytes] = ()

    def send(self, parts: Sequence[Any], deadline: float) -> None:
        """Keep the messages in `response`."""
        self.response = to_messages(parts)

    def _next(self, deadline: float) -> bytes:
        with self._lock:
            if self._stopped:
                raise LaneBroken("this process is draining")
            self._waiting = True
        try:
            return next(self._requests)
        # gRPC raises a bare Exception when the caller is gone.
        except Exception as error:
            raise LaneBroken(_why(error)) from None
        finally:
            with self._lock:
                self._waiting = False

    def while_idle(self, action: Callable[[], object]) -> None:
        """Call `action` if no call is under way; a request that arrives meanwhile waits for it."""
        with self._lock:
            if self._waiting:
                action()

    def stop_receiving(self) -> None:
        """Accept no further request; a response under way is still sent."""
        with self._lock:
            self._stopped = True
            if self._waiting:
                self._context.cancel()

    def close(self) -> None:
        """End the stream."""
        self._context.cancel()


def _why(error: object) -> str:
    if isinstance(error, grpc.Call) and not error.is_active():
        return f"{error.code()}: {error.details()}"
    return "the stream has ended"

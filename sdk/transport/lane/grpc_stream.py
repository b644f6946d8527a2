"""Both ends of a lane over a long-lived gRPC stream, the rpc Exchange.

gRPC takes a third less time for a message on a stream than for a call of its own. It has no
deadline for one message, so a watch ends the streams whose answer is late.
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


EXCHANGE = methods_of(pb.DESCRIPTOR.services_by_name["OwnerService"])["Exchange"]
"""The rpc that every server answers by itself."""

VERSION_METADATA = ("gradmesh-lane-version", str(VERSION))
"""What both ends say when a stream is opened."""

_T = TypeVar("_T")
_NOTHING = memoryview(b"")


class MessageStream(ByteStream):
    """Bytes in messages."""

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
            TimeoutError: None came in time.
            LaneBroken: The stream is over.
        """


@final
class StreamWatchdog:
    """Ends streams whose answer does not come in time; a thread from the first stream on."""

    def __init__(self) -> None:
        # Guards changes of _wake and _closed. _until is changed without, by one thread a stream.
        self._changed = threading.Condition()
        self._until: dict[ClientStream, float] = {}
        # When the thread looks next. It is not told of calls that end, nor of later deadlines: so
        # it wakes once in the time that calls are given, not once a call.
        self._wake = float("inf")
        self._thread: threading.Thread | None = None
        self._closed = False

    def begin(self, stream: "ClientStream", deadline: float) -> None:
        """End the stream at the deadline unless `end` comes first."""
        self._until[stream] = deadline
        if deadline < self._wake:
            with self._changed:
                self._wake = min(self._wake, deadline)
                if self._thread is None and not self._closed:
                    self._thread = threading.Thread(
                        target=self._run, name="lane-watch", daemon=True
                    )
                    self._thread.start()
                self._changed.notify_all()

    def end(self, stream: "ClientStream") -> None:
        """Leave the stream alone."""
        self._until.pop(stream, None)

    def _run(self) -> None:
        while self._wait():
            # Before the look, so that a call that begins meanwhile is either seen or tells us.
            self._wake = float("inf")
            now = time.monotonic()
            waiting = list(self._until.items())
            for stream, deadline in waiting:
                # Unless its call has ended meanwhile, and perhaps another one has begun.
                if deadline <= now and self._until.get(stream) == deadline:
                    stream.expire()
            with self._changed:
                later = [deadline for _, deadline in waiting if deadline > now]
                self._wake = min([self._wake, *later])

    def _wait(self) -> bool:
        """Wait until it is time to look; return False at the end."""
        with self._changed:
            while not self._closed:
                left_s = self._wake - time.monotonic()
                if left_s <= 0:
                    return True
                self._changed.wait(min(left_s, threading.TIMEOUT_MAX))
        return False

    def close(self) -> None:
        """End the thread; may be called twice."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


@final
class ClientStream(MessageStream):
    """The end that asks.

    Args:
        call: The rpc, begun.
        watch: Ends it when an answer is late.
    """

    def __init__(self, call: DirectCall, watch: StreamWatchdog) -> None:
        super().__init__()
        self._watch = watch
        self._expired = False
        self._call = call

    def open(self, deadline: float) -> None:
        """Wait until the server has taken the stream.

        Raises:
            TimeoutError: It did not in time.
            LaneBroken: It does not want to.
        """
        said = self._within(deadline, self._call.initial_metadata)
        if VERSION_METADATA not in [(key, value) for key, value in said]:
            raise LaneBroken(f"no stream: {self._call.end}")

    def send(self, parts: Sequence[Any], deadline: float) -> None:
        """Hand all parts over to gRPC."""
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
        """Do something that ends with the stream, by the deadline at the latest."""
        self._watch.begin(self, deadline)
        try:
            return action(*args)
        except LaneBroken:
            if self._expired:
                raise TimeoutError("no answer in time") from None
            raise
        finally:
            self._watch.end(self)

    def expire(self) -> None:
        """End the stream because its answer is late."""
        self._expired = True
        self.close()

    def stop_receiving(self) -> None:
        """End the stream: it has no two halves."""
        self.close()

    def close(self) -> None:
        """End the stream, also under a thread that waits for an answer."""
        self._call.cancel()


@final
class ServerStream(MessageStream):
    """The end that answers.

    Args:
        requests: Messages that arrive.
        context: Of the rpc.
    """

    def __init__(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> None:
        super().__init__()
        self._requests = requests
        self._context = context
        self._lock = threading.Lock()  # guards _waits and _stopped
        self._waits = False
        self._stopped = False
        self.answer: Iterable[bytes] = ()

    def send(self, parts: Sequence[Any], deadline: float) -> None:
        """Keep the messages, to be yielded to gRPC as `answer`."""
        self.answer = to_messages(parts)

    def _next(self, deadline: float) -> bytes:
        with self._lock:
            if self._stopped:
                raise LaneBroken("this process is leaving")
            self._waits = True
        try:
            return next(self._requests)
        # gRPC raises a bare Exception when the caller is gone.
        except Exception as error:
            raise LaneBroken(_why(error)) from None
        finally:
            with self._lock:
                self._waits = False

    def while_idle(self, action: Callable[[], object]) -> None:
        """Do something now if no call is under way; a request that arrives waits for it."""
        with self._lock:
            if self._waits:
                action()

    def stop_receiving(self) -> None:
        """Let no further request in; an answer under way is still sent."""
        with self._lock:
            self._stopped = True
            if self._waits:
                self._context.cancel()

    def close(self) -> None:
        """End the stream."""
        self._context.cancel()


def _why(error: object) -> str:
    if isinstance(error, grpc.Call) and not error.is_active():
        return f"{error.code()}: {error.details()}"
    return "the stream is over"

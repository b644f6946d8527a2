"""Both ends of a lane over a long-lived gRPC stream, the rpc Exchange.

gRPC takes a third less time for a message on a stream than for a call of its own. It has no
deadline for one message, so a watch ends the streams whose answer is late.
"""

import queue
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import grpc

from gradmesh.protos.lane import VERSION
from gradmesh.protos.method import methods_of
from gradmesh.protos.owner.v1 import owner_pb2 as pb
from gradmesh.sdk.transport.lane.chunks import data_of, to_messages
from gradmesh.sdk.transport.lane.stream import LaneBroken, Stream

EXCHANGE = methods_of(pb.DESCRIPTOR.services_by_name["OwnerService"])["Exchange"]
"""The rpc that every server answers by itself."""

VERSION_METADATA = ("gradmesh-lane-version", str(VERSION))
"""What both ends say when a stream is opened."""

_NOTHING = memoryview(b"")


class MessageStream(Stream):
    """Bytes in messages."""

    def __init__(self) -> None:
        self._rest = _NOTHING

    def receive(self, view: Any, deadline: float) -> int:
        """Read some bytes into `view`."""
        rest = self._rest or data_of(self._next(deadline))
        count = min(len(view), len(rest))
        view[:count] = rest[:count]
        self._rest = rest[count:]
        return count

    @abstractmethod
    def _next(self, deadline: float) -> bytes:
        """Wait for a message.

        Raises:
            TimeoutError: None came in time.
            LaneBroken: The stream is over.
        """


@final
class Watch:
    """Ends streams whose answer does not come in time; a thread from the first stream on."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards _wake and _closed
        # Changed without the lock, by one thread a stream.
        self._until: dict[ClientStream, float] = {}
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
        while not self._closed:
            now = time.monotonic()
            for stream, deadline in list(self._until.items()):
                if deadline <= now:
                    stream.expire()
            with self._changed:
                waiting = [until for until in list(self._until.values()) if until > now]
                self._wake = min(waiting, default=float("inf"))
                left_s = self._wake - time.monotonic()
                if left_s > 0 and not self._closed:
                    self._changed.wait(min(left_s, threading.TIMEOUT_MAX))

    def close(self) -> None:
        """End the thread; may be called twice."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


@final
class ClientStream(MessageStream):
    """The end that asks.

    Args:
        start: Begins the rpc, given an iterator of messages to send.
        watch: Ends it when an answer is late.
    """

    def __init__(self, start: Callable[[Iterator[bytes]], Any], watch: Watch) -> None:
        super().__init__()
        self._watch = watch
        self._expired = False
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        # Yields messages until None comes.
        self._call = start(iter(self._outbox.get, None))

    def open(self, deadline: float) -> None:
        """Wait until the server has taken the stream.

        Raises:
            TimeoutError: It did not in time.
            LaneBroken: It does not want to.
        """
        self._watch.begin(self, deadline)
        try:
            said = self._call.initial_metadata()
        finally:
            self._watch.end(self)
        if VERSION_METADATA not in [(key, value) for key, value in said or ()]:
            if self._expired:
                raise TimeoutError("no answer in time")
            raise LaneBroken(f"no stream: {_why(self._call)}")

    def send(self, parts: Sequence[Any], deadline: float) -> None:
        """Hand all parts over to gRPC."""
        if time.monotonic() >= deadline:
            raise TimeoutError("the deadline passed")
        for message in to_messages(parts):
            self._outbox.put(message)

    def _next(self, deadline: float) -> bytes:
        self._watch.begin(self, deadline)
        try:
            message: bytes = next(self._call)
        except (grpc.RpcError, StopIteration) as error:
            if self._expired:
                raise TimeoutError("no answer in time") from None
            raise LaneBroken(_why(error)) from None
        finally:
            self._watch.end(self)
        return message

    def expire(self) -> None:
        """End the stream because its answer is late."""
        self._expired = True
        self.close()

    def stop_receiving(self) -> None:
        """End the stream: it has no two halves."""
        self.close()

    def close(self) -> None:
        """End the stream, also under a thread that waits for an answer."""
        self._outbox.put(None)
        self._call.cancel()

    def __del__(self) -> None:
        # gRPC's thread that sends would wait for ever.
        if hasattr(self, "_outbox"):
            self._outbox.put(None)


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
        self.answer: Iterator[bytes] = iter(())

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

"""A stream of gRPC on which the caller's own thread sends and receives.

With gRPC's public interface two more threads serve a stream: one takes messages from an iterator,
the other receives, and what they hand over costs a third of a small call. Underneath, gRPC's own
blocking calls ask the completion queue themselves; so do we. These names are not public: where a
version of gRPC lacks them no stream is opened, and hot calls go one by one.
"""

import threading
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any, TypeAlias, final

import grpc

from gradmesh.sdk.transport.lane.stream import LaneBroken

Metadata: TypeAlias = Sequence[tuple[str, str | bytes]]
"""Names and values that go with a call."""

_core: Any
try:
    _core = import_module("grpc._cython.cygrpc")
except ImportError:
    _core = None

_NO_FLAGS = 0


@final
class DirectCall:
    """One stream, opened at once.

    Args:
        channel: To whom.
        path: The rpc.
        metadata: What goes with it.

    Attributes:
        end: Why it is over; None before.

    Raises:
        ValueError: The channel is closed.
        LaneBroken: This version of gRPC has no such calls.
    """

    def __init__(self, channel: grpc.Channel, path: str, metadata: Metadata) -> None:
        self._turn = threading.Lock()  # held by whoever asks for events
        self._sending = self._receiving = False
        self._message: bytes | None = None
        self._said: Metadata | None = None
        self.end: str | None = None
        # Batches of operations whose event was not taken yet: those that begin the stream.
        self._due = 3
        try:
            self._call = self._open(channel, path.encode(), tuple(metadata))
        except (AttributeError, TypeError) as error:
            raise LaneBroken(f"gRPC {grpc.__version__} has no direct calls: {error}") from None

    @staticmethod
    def _open(channel: Any, path: bytes, metadata: Metadata) -> Any:
        beginning = (
            (_core.SendInitialMetadataOperation(metadata, _NO_FLAGS),),
            (_core.ReceiveInitialMetadataOperation(_NO_FLAGS),),
            (_core.ReceiveStatusOnClientOperation(_NO_FLAGS),),
        )
        return channel._channel.segregated_call(
            _core.PropagationConstants.GRPC_PROPAGATE_DEFAULTS,
            path,
            None,
            None,
            metadata,
            None,
            tuple((operations, None) for operations in beginning),
            None,
        )

    def initial_metadata(self) -> Metadata:
        """Wait for what the server says first; nothing if it does not take the stream."""
        with self._turn:
            while self._said is None and self.end is None:
                self._take_event()
        return self._said or ()

    def ask(self, message: bytes) -> None:
        """Send a message and ask for its answer, which `receive` returns.

        Raises:
            LaneBroken: The stream is over.
        """
        with self._turn:
            self._wait_until_sent()
            self._sending = self._receiving = True
            self._start(
                (
                    _core.SendMessageOperation(message, _NO_FLAGS),
                    _core.ReceiveMessageOperation(_NO_FLAGS),
                )
            )

    def send(self, messages: Iterable[bytes]) -> None:
        """Send messages.

        Raises:
            LaneBroken: The stream is over.
        """
        with self._turn:
            for message in messages:
                self._wait_until_sent()
                self._sending = True
                self._start((_core.SendMessageOperation(message, _NO_FLAGS),))

    def _wait_until_sent(self) -> None:
        """Wait for the message before: gRPC takes one at a time."""
        while self._sending and self.end is None:
            self._take_event()

    def receive(self) -> bytes:
        """Wait for a message.

        Raises:
            LaneBroken: The stream is over.
        """
        with self._turn:
            if not self._receiving and self._message is None:
                self._receiving = True
                self._start((_core.ReceiveMessageOperation(_NO_FLAGS),))
            while self._message is None:
                if self.end is not None or not self._receiving:
                    self._drain()
                    raise LaneBroken(self.end or "the stream is over")
                self._take_event()
            message, self._message = self._message, None
            return message

    def _start(self, operations: Sequence[Any]) -> None:
        if self.end is not None or not self._call.operate(operations, None):
            self._sending = self._receiving = False
            raise LaneBroken(self.end or "the stream is over")
        self._due += 1

    def _take_event(self) -> None:
        """Wait for whatever is over next, and keep what it brought."""
        try:
            event = self._call.next_event()
        except BaseException as error:
            # As by Ctrl-C. gRPC has let go of the call; nobody may ask for its events again.
            self._due = 0
            self._sending = self._receiving = False
            self.end = self.end or f"given up: {type(error).__name__}"
            raise
        self._due -= 1
        kinds = _core.OperationType
        for operation in event.batch_operations:
            kind = operation.type()
            if kind == kinds.receive_message:
                self._message, self._receiving = operation.message(), False
            elif kind == kinds.send_message:
                self._sending = False
            elif kind == kinds.receive_initial_metadata:
                self._said = operation.initial_metadata()
            elif kind == kinds.receive_status_on_client:
                self.end = f"status {operation.code()}: {operation.details()}"

    def _drain(self) -> None:
        """Take all events of a stream that ends: gRPC keeps what it has of it until then."""
        while self._due:
            self._take_event()

    def cancel(self) -> None:
        """End the stream, also under a thread that waits for it; may be called twice."""
        self._call.cancel(_core.StatusCode.cancelled, "given up by the caller")
        # Else whoever has the turn takes the events.
        if self._turn.acquire(blocking=False):
            try:
                self._drain()
            finally:
                self._turn.release()

"""A gRPC stream on which the calling thread itself sends and receives.

With gRPC's public interface two more threads serve a stream: one consumes an iterator of messages,
the other receives. Handing over between them costs a third of a small call. gRPC's own blocking
calls poll the completion queue themselves, and so does this module. The names it uses are not
public: where a version of gRPC lacks them no stream is opened, and hot calls are unary.
"""

import threading
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any, TypeAlias, final

import grpc

from gradmesh.sdk.transport.lane.stream import LaneBroken

Metadata: TypeAlias = Sequence[tuple[str, str | bytes]]
"""Names and values that accompany a call."""

_core: Any
try:
    _core = import_module("grpc._cython.cygrpc")
except ImportError:
    _core = None

_NO_FLAGS = 0


@final
class DirectCall:
    """One stream, started by the constructor.

    Args:
        channel: The gRPC channel.
        path: The rpc.
        metadata: Sent with the call.

    Attributes:
        end: Why the stream has ended; None before.

    Raises:
        ValueError: The channel is closed.
        LaneBroken: This version of gRPC lacks the private names.
    """

    def __init__(self, channel: grpc.Channel, path: str, metadata: Metadata) -> None:
        self._polling = threading.Lock()  # held by the thread that polls for events
        self._sending = self._receiving = False
        self._message: bytes | None = None
        self._initial: Metadata | None = None
        self.end: str | None = None
        # Batches whose event is outstanding; the stream starts with three.
        self._outstanding = 3
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
        """Wait for the server's initial metadata; empty if it refuses the stream."""
        with self._polling:
            while self._initial is None and self.end is None:
                self._take_event()
        return self._initial or ()

    def ask(self, message: bytes) -> None:
        """Send a message and begin to receive its response, which `receive` returns.

        Raises:
            LaneBroken: The stream has ended.
        """
        with self._polling:
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
            LaneBroken: The stream has ended.
        """
        with self._polling:
            for message in messages:
                self._wait_until_sent()
                self._sending = True
                self._start((_core.SendMessageOperation(message, _NO_FLAGS),))

    def _wait_until_sent(self) -> None:
        """Wait for the previous message: gRPC accepts one at a time."""
        while self._sending and self.end is None:
            self._take_event()

    def receive(self) -> bytes:
        """Wait for a message.

        Raises:
            LaneBroken: The stream has ended.
        """
        with self._polling:
            if not self._receiving and self._message is None:
                self._receiving = True
                self._start((_core.ReceiveMessageOperation(_NO_FLAGS),))
            while self._message is None:
                if self.end is not None or not self._receiving:
                    self._drain()
                    raise LaneBroken(self.end or "the stream has ended")
                self._take_event()
            message, self._message = self._message, None
            return message

    def _start(self, operations: Sequence[Any]) -> None:
        if self.end is not None or not self._call.operate(operations, None):
            self._sending = self._receiving = False
            raise LaneBroken(self.end or "the stream has ended")
        self._outstanding += 1

    def _take_event(self) -> None:
        """Wait for the next completed batch and store its results."""
        try:
            event = self._call.next_event()
        except BaseException as error:
            # For example Ctrl-C. gRPC has dropped the call; its events must not be polled again.
            self._outstanding = 0
            self._sending = self._receiving = False
            self.end = self.end or f"interrupted: {type(error).__name__}"
            raise
        self._outstanding -= 1
        kinds = _core.OperationType
        for operation in event.batch_operations:
            kind = operation.type()
            if kind == kinds.receive_message:
                self._message, self._receiving = operation.message(), False
            elif kind == kinds.send_message:
                self._sending = False
            elif kind == kinds.receive_initial_metadata:
                self._initial = operation.initial_metadata()
            elif kind == kinds.receive_status_on_client:
                self.end = f"status {operation.code()}: {operation.details()}"

    def _drain(self) -> None:
        """Poll the remaining events of a stream that ends, so that gRPC frees it."""
        while self._outstanding:
            self._take_event()

    def cancel(self) -> None:
        """End the stream, also under a thread that waits for it; may be called twice."""
        self._call.cancel(_core.StatusCode.cancelled, "cancelled by the caller")
        # Else the thread that polls drains the events.
        if self._polling.acquire(blocking=False):
            try:
                self._drain()
            finally:
                self._polling.release()

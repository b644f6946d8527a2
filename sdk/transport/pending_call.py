"""A call under way: first on a lane if there is one, then through gRPC, with retries."""

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, final

import grpc
import numpy as np

from gradmesh.protos.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidFrame,
    MeshError,
    Retry,
    TicketRejected,
    Unreachable,
)
from gradmesh.protos.frame import Array, Frame, parse
from gradmesh.protos.lane import SUCCEEDED
from gradmesh.protos.method import Body, Method, from_wire, to_wire
from gradmesh.sdk.transport.boundary import from_bytes, from_call
from gradmesh.sdk.transport.call import ArrayAllocator
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.sdk.transport.lane.link import Link, Received
from gradmesh.sdk.transport.lane.stream import LaneBroken, SocketStream


def may_repeat(method: Method, error: MeshError) -> bool:
    """Return whether the call may be sent again after this error.

    A typed refusal means that the server did not act, so even a call that is not repeatable may be
    sent again. A lost connection says nothing about what the server did.
    """
    if error.retry is not Retry.CALL:
        return False
    was_refused = isinstance(error, TicketRejected) or not isinstance(error, Unreachable)
    return method.repeatable or was_refused


if TYPE_CHECKING:
    from gradmesh.sdk.transport.channel import Channel

RequestWriter: TypeAlias = Callable[[ArrayAllocator], Body]
"""Returns a request, given an allocator for its arrays."""


# gRPC ends a call at its deadline; this is the limit where its threads are gone, as at exit.
_GRACE_S = 1.0


@final
class PendingCall:
    """A call under way, sent again by `result` where that is safe.

    Args:
        channel: The channel to the worker.
        method: The rpc.
        request: The request, or a function that writes it.
        deadline: For all attempts together.

    Raises:
        InvalidRequest: The request cannot be sent.
    """

    __slots__ = (
        "_begun",
        "_cancelled",
        "_channel",
        "_data",
        "_deadline",
        "_failure",
        "_future",
        "_lane",
        "_link",
        "_method",
        "_request",
        "_sent",
        "_wake",
    )

    def __init__(
        self, channel: "Channel", method: Method, request: Body | RequestWriter, deadline: Deadline
    ) -> None:
        self._begun = time.monotonic()
        self._channel = channel
        self._method = method
        self._deadline = deadline
        self._data: bytes | None = None
        self._future: grpc.Future[bytes] | None = None
        self._failure: MeshError | None = None
        self._cancelled = False
        self._wake: threading.Event | None = None
        self._sent = 0
        self._lane = "unary"
        self._link: Link | None = None
        left_s = deadline.remaining_s()
        link = channel.lanes.take(left_s) if method.number and left_s > 0 else None
        self._link = link
        try:
            if link is None:
                self._request = request(np.empty) if callable(request) else request
                self._send_through_grpc()
            else:
                link.arena.begin()
                self._request = request(link.arena.empty) if callable(request) else request
                self._send(link, left_s)
        except BaseException:
            # Nothing was sent, so the connection can be reused.
            self.release()
            raise

    def _send(self, link: Link, left_s: float) -> None:
        """Send the request over the lane; `borrow` handles a failure."""
        request = self._request
        arrays: Sequence[Array] = ()
        if isinstance(request, Frame):
            arrays = request.arrays
            request = request.message
        self._lane = link.kind
        link.calls = call = (link.calls + 1) & 0xFFFFFFFF
        left_ms = min(int(left_s * 1000), 0xFFFFFFFF)
        head = request.SerializeToString()
        try:
            self._sent = link.send(
                self._method.number, call, left_ms, head, arrays, self._deadline.at
            )
        except (LaneBroken, TimeoutError) as error:
            self._break(link, error)

    def _send_through_grpc(self) -> None:
        if self._data is None:
            self._data = to_wire(self._request, self._channel.max_frame_bytes)
            self._sent = len(self._data)
        self._lane = "unary"
        self._future = None
        left_s = self._deadline.remaining_s()
        try:
            self._future = self._channel.attempt(self._method, self._data, left_s)
        except Unreachable as error:
            if self._channel.closed:
                raise
            self._failure = error  # no ticket yet: `borrow` repeats it as it does a lost connection

    def result(self) -> Any:
        """Wait for the response until the call's deadline; its arrays belong to the caller.

        Raises:
            MeshError: What the worker raised, or why it could not be called.
        """
        response = self.borrow()
        if self._link is not None and isinstance(response, Frame):
            response = Frame(response.message, [array.copy() for array in response.arrays])
        self.release()
        return response

    def borrow(self) -> Any:
        """Wait for the response as `result` does; its arrays are valid until `release`."""
        pauses: Iterator[float] | None = None
        former: MeshError | None = None
        while True:
            try:
                response, received = self._receive() if self._future is None else self._await()
            except MeshError as error:
                if isinstance(error, TicketRejected):
                    self._channel.credentials.renew()
                pauses = pauses or self._channel.retry.pauses()
                # A broken lane says nothing about the server: try gRPC at once.
                lost = self._lane != "unary" and isinstance(error, Unreachable)
                pause_s = 0.0 if lost else next(pauses)
                if not may_repeat(self._method, error) or self._exhausted(error, pause_s):
                    self._observe(error.reason, 0)
                    failure = _final(error, former)
                    raise failure from failure.__cause__
                former = error
            else:
                self._observe("OK", received)
                return response
            self._send_again(pause_s)

    def _receive(self) -> tuple[Any, int]:
        """Return the response from the lane, and its size."""
        link = self._link
        if link is None and self._cancelled:
            raise Cancelled(f"{self._where()}: cancelled by the caller")
        if link is None:
            raise self._failure or DeadlineExceeded(f"{self._where()}: no time was left")
        try:
            received = link.receive(self._deadline.at)
            refused = received.number != SUCCEEDED and received.call in (0, link.calls)
            if received.call != link.calls and not refused:
                raise LaneBroken("a response to another call")
            message = None if refused else parse(received.head, self._method.response_type)
        except (LaneBroken, TimeoutError, InvalidFrame) as error:
            raise self._break(link, error) from None
        if refused:
            raise self._refused(received)
        if self._method.bulk[1]:
            return Frame(message, received.arrays), received.size
        return message, received.size

    def _refused(self, received: Received) -> MeshError:
        """Return the error that the worker answered with."""
        error = from_bytes(received.head, self._where())
        if may_repeat(self._method, error):
            # The arrays may lie in the memory of the connection, which other calls use from now on.
            self._data = to_wire(self._request, self._channel.max_frame_bytes)
        if received.call:
            self.release()
        else:  # the error is about the connection, which the worker closes
            self._drop()
        return error

    def _await(self) -> tuple[Any, int]:
        """Return the response of the latest attempt through gRPC, and its size."""
        assert self._future is not None
        try:
            data = self._future.result(self._deadline.remaining_s() + _GRACE_S)
        except grpc.FutureTimeoutError:
            raise DeadlineExceeded(f"{self._where()}: no answer in time") from None
        except grpc.FutureCancelledError:
            raise Cancelled(f"{self._where()}: cancelled by the caller") from None
        except grpc.RpcError as failure:
            raise from_call(failure, self._where()) from None
        try:
            limit = self._channel.max_frame_bytes
            return from_wire(data, self._method.response_type, limit), len(data)
        except InvalidFrame as error:
            raise InvalidFrame(f"{self._where()}: {error.message}", **error.metadata) from None

    def _send_again(self, pause_s: float) -> None:
        self._wake = threading.Event()
        # Without time for another attempt the last failure is the result.
        if not self._cancelled and not self._wake.wait(pause_s) and not self._deadline.passed:
            self._send_through_grpc()
        if self._cancelled:
            self.cancel()
            raise Cancelled(f"{self._where()}: cancelled by the caller")

    def on_answer(self, function: Callable[[], None]) -> bool:
        """Call a function when gRPC has the response; return False if that is not possible.

        It is not on a lane, where a thread has to receive the response.
        """
        if self._future is None:
            return False
        self._future.add_done_callback(lambda _: function())
        return True

    @property
    def answered(self) -> bool:
        """Whether gRPC has the response; always False on a lane, where a thread must receive it."""
        return self._future is not None and self._future.done()

    @property
    def doorbell(self) -> socket.socket | None:
        """The socket that is readable when the response has arrived; None if there is none."""
        link = self._link
        if link is not None and isinstance(link.stream, SocketStream):
            return link.stream.sock
        return None

    def release(self) -> None:
        """Return the borrowed memory and the connection; may be called twice."""
        link, self._link = self._link, None
        if link is not None:
            self._channel.lanes.give(link)

    def cancel(self) -> None:
        """Stop waiting; the worker may or may not have acted."""
        self._cancelled = True
        if self._wake is not None:
            self._wake.set()
        if self._future is not None:
            self._future.cancel()
        self._drop()

    def _drop(self) -> None:
        """Close the lane connection, if the call has one."""
        link, self._link = self._link, None
        if link is not None:
            self._channel.lanes.drop(link)

    def __del__(self) -> None:
        # The call was started, but its response was never received.
        if getattr(self, "_link", None) is not None:
            self._drop()

    def _break(self, link: Link, error: Exception) -> MeshError:
        """Close the connection; return the error of the call."""
        self._link = None
        if self._cancelled:
            self._failure = Cancelled(f"{self._where()}: cancelled by the caller")
        elif self._deadline.passed:
            self._channel.lanes.drop(link)
            self._failure = DeadlineExceeded(
                f"{self._where()}: no answer in time; it may be overloaded; raise the timeout"
            )
        else:
            self._channel.lanes.broke(link, str(error))
            self._failure = Unreachable(f"{self._where()}: {error}; is it running?")
        return self._failure

    def _exhausted(self, error: MeshError, pause_s: float) -> bool:
        if self._deadline.remaining_s() <= pause_s:
            return True
        # The pause counts, too: patience must not be exceeded by it.
        waited_s = time.monotonic() - self._begun + pause_s
        return isinstance(error, Unreachable) and waited_s > self._channel.patience_s

    def _where(self) -> str:
        return f"{self._channel.worker} at {self._channel.address}, {self._method.name}"

    def _observe(self, status: str, received: int) -> None:
        seconds = time.monotonic() - self._begun
        channel = self._channel
        sent = self._sent
        channel.bytes_moved += sent + received
        channel.metrics.observe(self._method.path, status, seconds, sent, received, self._lane)


def _final(error: MeshError, former: MeshError | None) -> MeshError:
    """Return the error to raise when no attempt is left.

    Args:
        error: The failure of the last attempt.
        former: The failure of the one before, which says more than that the time ran out.
    """
    said = former if former is not None and isinstance(error, DeadlineExceeded) else error
    if said.retry is Retry.CALL and not isinstance(said, Unreachable):
        waited = DeadlineExceeded(f"timed out: {said.message}", **said.metadata)
        waited.__cause__ = said
        return waited
    return error

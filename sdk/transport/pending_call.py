"""A call under way: first on a lane if there is one, then through gRPC, repeated until answered."""

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, final

import grpc
import numpy as np

from gradmesh.protos.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidFrame,
    MeshError,
    Retry,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Growing pauses between attempts.

    Args:
        first_s: Pause after the first failure.
        factor: Growth from pause to pause.
        max_s: Longest pause.
        jitter: Share of a pause that is random, so that many clients do not come back at once.
    """

    first_s: float = 0.05
    factor: float = 2.0
    max_s: float = 1.0
    jitter: float = 0.3

    def pauses(self) -> Iterator[float]:
        """Yield one pause after another, without end."""
        pause = self.first_s
        while True:
            yield pause * (1 - self.jitter * random.random())
            pause = min(self.max_s, pause * self.factor)


def may_repeat(method: Method, error: MeshError) -> bool:
    """Tell whether the call may be sent again after this error.

    A typed refusal means that the server did not act, so even a call that is not repeatable may go
    again. A lost connection says nothing about what the server did.
    """
    if error.retry is not Retry.CALL:
        return False
    return method.repeatable or not isinstance(error, Unreachable)


if TYPE_CHECKING:
    from gradmesh.sdk.transport.channel import Channel

RequestWriter: TypeAlias = Callable[[ArrayAllocator], Body]
"""Writes a request, given memory for its arrays."""


# gRPC ends a call at its deadline by itself; should its threads be gone, as at exit, we do.
_GRACE_S = 1.0


@final
class PendingCall:
    """A call under way, sent again by `result` where that is safe.

    Args:
        channel: To whom.
        method: The rpc.
        request: What to send, or what writes it.
        deadline: Of all attempts together.

    Raises:
        InvalidRequest: The request cannot be sent.
    """

    __slots__ = (
        "_begun",
        "_channel",
        "_data",
        "_deadline",
        "_future",
        "_given_up",
        "_lane",
        "_link",
        "_method",
        "_request",
        "_sent",
        "_trouble",
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
        self._trouble: MeshError | None = None
        self._given_up = False
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
            # Nothing was sent, so the connection is as good as before.
            self.release()
            raise

    def _send(self, link: Link, left_s: float) -> None:
        """Send the request over the lane; trouble is dealt with when the answer is wanted."""
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
        self._future = self._channel.attempt(self._method, self._data, self._deadline.remaining_s())

    def result(self) -> Any:
        """Wait for the answer until the call's deadline; its arrays are the caller's.

        Raises:
            MeshError: What the worker raised, or why it could not be asked.
        """
        response = self.borrow()
        if self._link is not None and isinstance(response, Frame):
            response = Frame(response.message, [array.copy() for array in response.arrays])
        self.release()
        return response

    def borrow(self) -> Any:
        """Wait for the answer as `result` does; its arrays are valid until `release`."""
        pauses: Iterator[float] | None = None
        former: MeshError | None = None
        while True:
            try:
                response, received = self._receive() if self._future is None else self._await()
            except MeshError as error:
                pauses = pauses or self._channel.retry.pauses()
                # A lost lane says nothing about the server: gRPC is asked at once.
                lost = self._future is None and isinstance(error, Unreachable)
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
        """Return what came over the lane, and its size."""
        link = self._link
        if link is None and self._given_up:
            raise Cancelled(f"{self._where()}: given up by the caller")
        if link is None:
            raise self._trouble or DeadlineExceeded(f"{self._where()}: no time was left")
        try:
            received = link.receive(self._deadline.at)
            refused = received.number != SUCCEEDED and received.call in (0, link.calls)
            if received.call != link.calls and not refused:
                raise LaneBroken("an answer to another call")
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
            # The arrays may lie in the connection's memory, which others write to from now on.
            self._data = to_wire(self._request, self._channel.max_frame_bytes)
        if received.call:
            self.release()
        else:  # the worker speaks of the connection, and closes it
            self._drop()
        return error

    def _await(self) -> tuple[Any, int]:
        """Return the answer of the newest attempt through gRPC, and its size."""
        assert self._future is not None
        try:
            data = self._future.result(self._deadline.remaining_s() + _GRACE_S)
        except grpc.FutureTimeoutError:
            raise DeadlineExceeded(f"{self._where()}: no answer in time") from None
        except grpc.FutureCancelledError:
            raise Cancelled(f"{self._where()}: given up by the caller") from None
        except grpc.RpcError as failure:
            raise from_call(failure, self._where()) from None
        try:
            limit = self._channel.max_frame_bytes
            return from_wire(data, self._method.response_type, limit), len(data)
        except InvalidFrame as error:
            raise InvalidFrame(f"{self._where()}: {error.message}", **error.metadata) from None

    def _send_again(self, pause_s: float) -> None:
        self._wake = threading.Event()
        # Without time for another attempt the last failure stands.
        if not self._given_up and not self._wake.wait(pause_s) and not self._deadline.passed:
            self._send_through_grpc()
        if self._given_up:
            self.cancel()
            raise Cancelled(f"{self._where()}: given up by the caller")

    def on_answer(self, function: Callable[[], None]) -> bool:
        """Call a function when gRPC has the answer; return False where somebody must wait for it.

        That is on a lane, or where `result` was called.
        """
        if self._future is None:
            return False
        self._future.add_done_callback(lambda _: function())
        return True

    @property
    def answered(self) -> bool:
        """Whether gRPC has the answer; on a lane that shows only when it is received."""
        return self._future is not None and self._future.done()

    @property
    def doorbell(self) -> socket.socket | None:
        """What can be read when the answer has come, where the call occupies a socket."""
        link = self._link
        if link is not None and isinstance(link.stream, SocketStream):
            return link.stream.sock
        return None

    def release(self) -> None:
        """Give back what `borrow` lent; may be called twice."""
        link, self._link = self._link, None
        if link is not None:
            self._channel.lanes.give(link)

    def cancel(self) -> None:
        """Stop waiting; the worker may or may not have acted."""
        self._given_up = True
        if self._wake is not None:
            self._wake.set()
        if self._future is not None:
            self._future.cancel()
        self._drop()

    def _drop(self) -> None:
        """Close the connection of the lane, if the call has one."""
        link, self._link = self._link, None
        if link is not None:
            self._channel.lanes.drop(link)

    def __del__(self) -> None:
        # Somebody started a call and never asked for its answer.
        if getattr(self, "_link", None) is not None:
            self._drop()

    def _break(self, link: Link, error: Exception) -> MeshError:
        """Give the connection up; return why."""
        self._link = None
        if self._given_up:
            self._trouble = Cancelled(f"{self._where()}: given up by the caller")
        elif self._deadline.passed:
            self._channel.lanes.drop(link)
            self._trouble = DeadlineExceeded(
                f"{self._where()}: no answer in time; it may be overloaded; raise the timeout"
            )
        else:
            self._channel.lanes.broke(link, str(error))
            self._trouble = Unreachable(f"{self._where()}: {error}; is it running?")
        return self._trouble

    def _exhausted(self, error: MeshError, pause_s: float) -> bool:
        if self._deadline.remaining_s() <= pause_s:
            return True
        # With the pause, or patience would last longer than it says by the longest of them.
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
    """Return what a caller sees when no attempt is left.

    Args:
        error: What ended the last attempt.
        former: What ended the one before; it says more than that the time ran out.
    """
    said = former if former is not None and isinstance(error, DeadlineExceeded) else error
    if said.retry is Retry.CALL and not isinstance(said, Unreachable):
        waited = DeadlineExceeded(f"waited in vain: {said.message}", **said.metadata)
        waited.__cause__ = said
        return waited
    return error

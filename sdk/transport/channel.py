"""The one place that builds gRPC channels, and the client's border.

A call has a deadline that covers all its attempts. Failures arrive as errors of the catalogue.
"""

import math
import threading
import time
from typing import Any, final

import grpc
from prometheus_client import CollectorRegistry

from gradmesh.protos import limits
from gradmesh.protos.errors import (
    Cancelled,
    DeadlineExceeded,
    GradmeshError,
    InvalidFrame,
    Retry,
    Unreachable,
)
from gradmesh.protos.method import Body, Method, from_wire, to_wire
from gradmesh.sdk.process.security import SecurityConfig
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.sdk.transport.metrics import RpcMetrics
from gradmesh.sdk.transport.retry import RetryPolicy, may_repeat
from gradmesh.sdk.transport.security import call_metadata, channel_credentials
from gradmesh.sdk.transport.status import from_call

# gRPC ends a call at its deadline by itself; should its threads be gone, as at exit, we do.
_GRACE_S = 1.0


@final
class Channel:
    """A connection to one worker; a context manager.

    Args:
        address: Where the worker is.
        worker: Its name, for messages.
        security: Certificates and token.
        retry: Pauses between attempts.
        patience_s: Give up on a worker that cannot be reached for so long, though the deadline
            is later; it may be back elsewhere.
        max_frame_bytes: Largest message either way.
        metrics: Where calls are counted.
    """

    def __init__(
        self,
        address: str,
        worker: str,
        *,
        security: SecurityConfig | None = None,
        retry: RetryPolicy | None = None,
        patience_s: float = math.inf,
        max_frame_bytes: int = limits.MAX_FRAME_BYTES,
        metrics: RpcMetrics | None = None,
    ) -> None:
        security = security or SecurityConfig()
        self.address = address
        self.worker = worker
        self.bytes_moved = 0
        self.retry = retry or RetryPolicy()
        self.patience_s = patience_s
        self.max_frame_bytes = max_frame_bytes
        self.metrics = metrics or RpcMetrics("client", CollectorRegistry())
        self.metadata = call_metadata(security)
        credentials = channel_credentials(security)
        options = _options(max_frame_bytes)
        if credentials is None:
            self._channel = grpc.insecure_channel(address, options)
        else:
            self._channel = grpc.secure_channel(address, credentials, options)
        self._calls: dict[str, Any] = {}

    def call(self, method: Method, request: Body, deadline: Deadline) -> Any:
        """Make a call and wait for its answer.

        Raises:
            GradmeshError: What the worker raised, or why it could not be asked.
        """
        return self.start(method, request, deadline).result()

    def start(self, method: Method, request: Body, deadline: Deadline) -> "Pending":
        """Begin a call; several to different workers run at once."""
        return Pending(self, method, to_wire(request, self.max_frame_bytes), deadline)

    def attempt(self, method: Method, data: bytes, timeout_s: float) -> "grpc.Future[bytes]":
        """Send the bytes of a call once.

        Raises:
            Unreachable: The channel was closed.
            DeadlineExceeded: There is no time left; gRPC might send it all the same.
        """
        if timeout_s <= 0:
            raise DeadlineExceeded(
                f"no time was left to ask {self.worker} at {self.address}, {method.name}"
            )
        call = self._calls.get(method.path)
        try:
            if call is None:
                call = self._calls[method.path] = self._channel.unary_unary(method.path)
            future: grpc.Future[bytes] = call.future(
                data, timeout=timeout_s, metadata=self.metadata
            )
        except ValueError:
            # All that gRPC says of a closed channel; the arguments are of the right kind.
            raise Unreachable(
                f"the channel to {self.worker} at {self.address} is closed; connect again"
            ) from None
        return future

    def close(self) -> None:
        """Close the connection; calls under way end with Unreachable. May be called twice."""
        self._channel.close()

    def __enter__(self) -> "Channel":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


@final
class Pending:
    """A call under way, sent again by `result` where that is safe."""

    def __init__(self, channel: Channel, method: Method, data: bytes, deadline: Deadline) -> None:
        self._channel = channel
        self._method = method
        self._data = data
        self._deadline = deadline
        self._begun = time.perf_counter()
        self._cancelled = threading.Event()
        self._future = channel.attempt(method, data, deadline.remaining_s())

    def result(self) -> Any:
        """Wait for the answer until the call's deadline.

        Raises:
            GradmeshError: What the worker raised, or why it could not be asked.
        """
        pauses = self._channel.retry.pauses()
        former: GradmeshError | None = None
        while True:
            try:
                response, received = self._receive()
            except GradmeshError as error:
                pause_s = next(pauses)
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
        """Return the answer of the newest attempt and its size."""
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
        # Without time for another attempt the last failure stands.
        if not self._cancelled.wait(pause_s) and not self._deadline.passed:
            self._future = self._channel.attempt(
                self._method, self._data, self._deadline.remaining_s()
            )
        if self._cancelled.is_set():
            self._future.cancel()
            raise Cancelled(f"{self._where()}: given up by the caller")

    def cancel(self) -> None:
        """Stop waiting; the worker may or may not have acted."""
        self._cancelled.set()
        self._future.cancel()

    def _exhausted(self, error: GradmeshError, pause_s: float) -> bool:
        if self._deadline.remaining_s() <= pause_s:
            return True
        waited_s = time.perf_counter() - self._begun
        return isinstance(error, Unreachable) and waited_s > self._channel.patience_s

    def _where(self) -> str:
        return f"{self._channel.worker} at {self._channel.address}, {self._method.name}"

    def _observe(self, status: str, received: int) -> None:
        seconds = time.perf_counter() - self._begun
        sent = len(self._data)
        self._channel.bytes_moved += sent + received
        self._channel.metrics.observe(self._method.path, status, seconds, sent, received)


def _final(error: GradmeshError, former: GradmeshError | None) -> GradmeshError:
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


def _options(max_frame_bytes: int) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", max_frame_bytes),
        ("grpc.max_send_message_length", max_frame_bytes),
        # Our own retries know which calls are repeatable; gRPC's would not.
        ("grpc.enable_retries", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1_000),
        # A peer that vanished without a goodbye is noticed while calls wait for it.
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 5_000),
        ("grpc.use_local_subchannel_pool", 1),
    ]

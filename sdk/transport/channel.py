"""The one place that builds gRPC channels, and the client's side of every call.

A call has a deadline that covers all its attempts. Failures arrive as errors of the catalogue. Hot
calls take a lane where there is one.
"""

import math
from dataclasses import dataclass, field
from typing import Any, final

import grpc

from gradmesh.protos import limits
from gradmesh.protos.errors import Cancelled, DeadlineExceeded, Unreachable
from gradmesh.protos.frame import parse
from gradmesh.protos.method import Body, Method
from gradmesh.protos.owner.v1 import owner_pb2 as pb
from gradmesh.sdk.process.network import LaneChoice, SecurityConfig
from gradmesh.sdk.transport.boundary import from_call
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.sdk.transport.lane.client import LanePool
from gradmesh.sdk.transport.lane.direct_call import DirectCall
from gradmesh.sdk.transport.lane.grpc_stream import EXCHANGE, VERSION_METADATA
from gradmesh.sdk.transport.lane.server import OPEN_LANE
from gradmesh.sdk.transport.metrics import RpcMetrics
from gradmesh.sdk.transport.pending_call import PendingCall as PendingCall
from gradmesh.sdk.transport.pending_call import RequestWriter as RequestWriter
from gradmesh.sdk.transport.pending_call import RetryPolicy
from gradmesh.sdk.transport.security import call_metadata, channel_credentials


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
        lane: Which way hot calls take; gRPC where it does not work.
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
        lane: LaneChoice = "auto",
    ) -> None:
        security = security or SecurityConfig()
        self.address = address
        self.worker = worker
        self.bytes_moved = 0
        self.retry = retry or RetryPolicy()
        self.patience_s = patience_s
        self.max_frame_bytes = max_frame_bytes
        self.metrics = metrics or RpcMetrics("client")
        self.metadata = call_metadata(security)
        credentials = channel_credentials(security)
        options = _options(max_frame_bytes)
        if credentials is None:
            self._channel = grpc.insecure_channel(address, options)
        else:
            self._channel = grpc.secure_channel(address, credentials, options)
        self._calls: dict[str, Any] = {}
        self.lanes = LanePool(
            address, worker, lane, self._negotiate, self._exchange, security, max_frame_bytes
        )

    def call(self, method: Method, request: Body | RequestWriter, deadline: Deadline) -> Any:
        """Make a call and wait for its answer.

        Raises:
            MeshError: What the worker raised, or why it could not be asked.
        """
        return self.start(method, request, deadline).result()

    def start(
        self, method: Method, request: Body | RequestWriter, deadline: Deadline
    ) -> "PendingCall":
        """Begin a call; several to different workers run at once.

        Args:
            method: The rpc.
            request: What to send, or a function that writes it given memory for its arrays, which
                on a lane is sent as it is.
            deadline: Of all attempts together.
        """
        return PendingCall(self, method, request, deadline)

    def attempt(self, method: Method, data: bytes, timeout_s: float) -> "grpc.Future[bytes]":
        """Send the bytes of a call once, through gRPC.

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
            raise self._is_closed() from None
        return future

    def _negotiate(self, request: pb.OpenLaneRequest, timeout_s: float) -> pb.OpenLaneResponse:
        where = f"{self.worker} at {self.address}, OpenLane"
        try:
            data = self.attempt(OPEN_LANE, request.SerializeToString(), timeout_s).result(timeout_s)
        except grpc.FutureTimeoutError:
            raise DeadlineExceeded(f"{where}: no answer in time") from None
        except grpc.FutureCancelledError:
            raise Cancelled(f"{where}: the channel was closed") from None
        except grpc.RpcError as failure:
            raise from_call(failure, where) from None
        return parse(data, pb.OpenLaneResponse)

    def _exchange(self) -> DirectCall:
        """Begin a stream of hot calls."""
        try:
            return DirectCall(self._channel, EXCHANGE.path, (*self.metadata, VERSION_METADATA))
        except ValueError:
            raise self._is_closed() from None

    def _is_closed(self) -> Unreachable:
        return Unreachable(
            f"the channel to {self.worker} at {self.address} is closed; connect again"
        )

    def close(self) -> None:
        """Close the connection; calls under way end with Unreachable. May be called twice."""
        self.lanes.close()
        self._channel.close()

    def __enter__(self) -> "Channel":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _options(max_frame_bytes: int) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", max_frame_bytes),
        ("grpc.max_send_message_length", max_frame_bytes),
        # Our own retries know which calls are repeatable; gRPC's would not.
        ("grpc.enable_retries", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1_000),
        # Not a pause, whatever it is called: how long an attempt to connect may take. Handshakes
        # across regions, or with a busy process, take more than the pauses above.
        ("grpc.min_reconnect_backoff_ms", 5_000),
        # A peer that vanished without a goodbye is noticed while calls wait for it.
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 5_000),
        ("grpc.use_local_subchannel_pool", 1),
        # Where a name has moved to another address, as a pod's does, half a minute is long.
        ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    ]


# A worker that cannot be reached for this long may be back at another address.
_PATIENCE_S = 2.0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Dialer:
    """Makes a channel from an address and a name.

    Args:
        security: Certificates and token.
        metrics: Where calls are counted.
        lane: Which way hot calls take.
        max_frame_bytes: Largest message either way.
    """

    security: SecurityConfig | None = None
    metrics: RpcMetrics = field(default_factory=lambda: RpcMetrics("client"))
    lane: LaneChoice = "auto"
    max_frame_bytes: int = limits.MAX_FRAME_BYTES

    def __call__(self, address: str, name: str) -> Channel:
        """Return a channel to a worker."""
        return Channel(
            address,
            name,
            security=self.security,
            metrics=self.metrics,
            patience_s=_PATIENCE_S,
            max_frame_bytes=self.max_frame_bytes,
            lane=self.lane,
        )

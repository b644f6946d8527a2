"""Channels: the client's side of every call, and the one place that builds gRPC channels.

A call has one deadline for all its attempts. Failures arrive as errors of the catalogue. Hot calls
take a lane where there is one.
"""

import math
import threading
import time
from dataclasses import dataclass, field, replace
from typing import Any, final

import grpc

from gradmesh.protos import limits
from gradmesh.protos.errors import Cancelled, DeadlineExceeded, TicketRejected, Unreachable
from gradmesh.protos.frame import parse
from gradmesh.protos.method import Body, Method
from gradmesh.protos.owner.v1 import owner_pb2 as pb
from gradmesh.protos.ticket import SESSION_METADATA
from gradmesh.sdk.process.network import LaneChoice, SecurityConfig
from gradmesh.sdk.transport.boundary import from_call
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.sdk.transport.identity import MemberIdentity
from gradmesh.sdk.transport.lane.client import LanePool
from gradmesh.sdk.transport.lane.direct_call import DirectCall
from gradmesh.sdk.transport.lane.grpc_stream import EXCHANGE, VERSION_METADATA
from gradmesh.sdk.transport.lane.server import OPEN_LANE
from gradmesh.sdk.transport.metrics import RpcMetrics
from gradmesh.sdk.transport.pending_call import PendingCall as PendingCall
from gradmesh.sdk.transport.pending_call import RequestWriter as RequestWriter
from gradmesh.sdk.transport.policy import RetryPolicy
from gradmesh.sdk.transport.security import (
    CertificateFiles,
    channel_credentials,
    token_metadata,
)
from gradmesh.sdk.transport.tickets import (
    CallCredentials,
    FixedCredentials,
    TicketCredentials,
    TicketSource,
)


@final
class Channel:
    """A connection to one worker; a context manager.

    Args:
        address: Address of the worker.
        worker: Its name, for messages.
        security: Certificates and token.
        retry: Pauses between attempts.
        patience_s: Give up on a worker that is unreachable for this long, even before the deadline;
            it may have restarted at another address.
        max_frame_bytes: Largest message either way.
        metrics: Where calls are counted.
        lane: The lane of hot calls; gRPC where it is unavailable.
        credentials: What each call shows to the worker; by default the token of `security`, which
            suits configured addresses only.
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
        credentials: CallCredentials | None = None,
    ) -> None:
        security = security or SecurityConfig()
        self.address = address
        self.worker = worker
        self.bytes_moved = 0
        self.closed = False
        self.retry = retry or RetryPolicy()
        self.patience_s = patience_s
        self.max_frame_bytes = max_frame_bytes
        self.metrics = metrics or RpcMetrics("client")
        self.credentials = credentials or FixedCredentials(token_metadata(security))
        tls = channel_credentials(security)
        self._channel = self._connected(tls)
        self._calls: dict[str, Any] = {}
        # Without TLS there is nothing to renew.
        self._files = None if tls is None else CertificateFiles(security, channel_credentials)
        self._renewing = threading.Lock()  # guards _former, and changes of _channel
        self._former: list[grpc.Channel] = []
        self._next_look = 0.0
        self.lanes = LanePool(
            address, worker, lane, self._negotiate, self._exchange, security, max_frame_bytes
        )

    def call(self, method: Method, request: Body | RequestWriter, deadline: Deadline) -> Any:
        """Make a call and wait for its response.

        Raises:
            MeshError: What the worker raised, or why it could not be called.
        """
        return self.start(method, request, deadline).result()

    def start(
        self, method: Method, request: Body | RequestWriter, deadline: Deadline
    ) -> "PendingCall":
        """Start a call, so that calls to several workers overlap.

        Args:
            method: The rpc.
            request: The request, or a function that writes it into the memory it is given, which a
                lane sends without a copy.
            deadline: For all attempts together.
        """
        return PendingCall(self, method, request, deadline)

    def attempt(self, method: Method, data: bytes, timeout_s: float) -> "grpc.Future[bytes]":
        """Send the bytes of a call once, through gRPC.

        Raises:
            Unreachable: The channel was closed.
            DeadlineExceeded: No time is left; gRPC might send the call nevertheless.
            MeshError: There are no credentials.
        """
        if timeout_s <= 0:
            raise DeadlineExceeded(
                f"no time was left to call {self.worker} at {self.address}, {method.name}"
            )
        begun = time.monotonic()
        metadata = self.credentials.metadata(timeout_s)
        timeout_s -= time.monotonic() - begun
        if self._files is not None:
            self._use_new_certificates(self._files)
        call = self._calls.get(method.path)
        try:
            if call is None:
                call = self._calls[method.path] = self._channel.unary_unary(method.path)
            future: grpc.Future[bytes] = call.future(data, timeout=timeout_s, metadata=metadata)
        except ValueError:
            # How gRPC reports a closed channel; the arguments are valid.
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
            error = from_call(failure, where)
            if isinstance(error, TicketRejected):
                self.credentials.renew()  # for the call itself, which goes through gRPC
            raise error from None
        return parse(data, pb.OpenLaneResponse)

    def _exchange(self, timeout_s: float) -> DirectCall:
        """Start a stream for hot calls."""
        metadata = self.credentials.metadata(timeout_s)
        if self._files is not None:
            self._use_new_certificates(self._files)
        try:
            return DirectCall(self._channel, EXCHANGE.path, (*metadata, VERSION_METADATA))
        except ValueError:
            raise self._is_closed() from None

    def _connected(self, tls: grpc.ChannelCredentials | None) -> grpc.Channel:
        options = _options(self.max_frame_bytes)
        if tls is None:
            return grpc.insecure_channel(self.address, options)
        return grpc.secure_channel(self.address, tls, options)

    def _use_new_certificates(
        self, files: CertificateFiles[grpc.ChannelCredentials | None]
    ) -> None:
        """Connect with renewed certificates from now on; calls under way keep their connection."""
        now = time.monotonic()
        if now < self._next_look or not self._renewing.acquire(blocking=False):
            return
        try:
            self._next_look = now + _LOOK_S
            tls = files.changed()
            if tls is None or self.closed:
                return
            self._former.append(self._channel)
            self._channel, self._calls = self._connected(tls), {}
            # Its calls have ended: certificates are renewed days apart.
            for channel in self._former[:-1]:
                channel.close()
            del self._former[:-1]
        finally:
            self._renewing.release()

    def _is_closed(self) -> Unreachable:
        return Unreachable(
            f"the channel to {self.worker} at {self.address} is closed; connect again"
        )

    def close(self) -> None:
        """Close the connection; calls under way end with Unreachable. May be called twice."""
        self.closed = True
        self.lanes.close()
        with self._renewing:
            for channel in (*self._former, self._channel):
                channel.close()

    def __enter__(self) -> "Channel":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


# How often certificate files are looked at, by calls.
_LOOK_S = 5.0


def _options(max_frame_bytes: int) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", max_frame_bytes),
        ("grpc.max_send_message_length", max_frame_bytes),
        # Our own retries depend on which calls are repeatable; gRPC's do not.
        ("grpc.enable_retries", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1_000),
        # Despite its name this limits one attempt to connect. Handshakes across regions, or with a
        # busy process, take longer than the pauses above.
        ("grpc.min_reconnect_backoff_ms", 5_000),
        # Detects a peer that vanished without closing its connection while calls wait for it.
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 5_000),
        ("grpc.use_local_subchannel_pool", 1),
        # The default of 30 s is long where a name moves to another address, as a pod's does.
        ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    ]


# A worker that is unreachable for this long may have restarted at another address.
_PATIENCE_S = 2.0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Dialer:
    """Makes a channel from an address and a name.

    The token goes to the coordinator only, whose address is configured. Addresses of members come
    from the members themselves, so they get tickets, which are useless elsewhere.

    Args:
        security: Certificates and token.
        metrics: Where calls are counted.
        lane: The lane of hot calls.
        max_frame_bytes: Largest message either way.
        retry: Pauses between attempts.
        identity: This process, if it becomes a member.
        tickets: Its tickets for other members.
    """

    security: SecurityConfig | None = None
    metrics: RpcMetrics = field(default_factory=lambda: RpcMetrics("client"))
    lane: LaneChoice = "auto"
    max_frame_bytes: int = limits.MAX_FRAME_BYTES
    retry: RetryPolicy | None = None
    identity: MemberIdentity | None = None
    tickets: TicketSource | None = None

    def of_process(self, identity: MemberIdentity | None = None) -> "Dialer":
        """Return a dialer with the identity and the tickets of one process."""
        needed = self.security is not None and self.security.authenticates
        return replace(self, identity=identity, tickets=TicketSource(needed))

    def coordinator(self, address: str) -> Channel:
        """Return a channel to a coordinator, which restarts at its address: calls wait for it."""
        shown = () if self.security is None else token_metadata(self.security)
        if self.identity is not None:
            shown = (*shown, (SESSION_METADATA, self.identity.session))
        return Channel(
            address,
            "coordinator",
            security=self.security,
            retry=self.retry,
            metrics=self.metrics,
            credentials=FixedCredentials(shown),
        )

    def __call__(self, address: str, name: str) -> Channel:
        """Return a channel to a worker."""
        return Channel(
            address,
            name,
            security=self.security,
            retry=self.retry,
            metrics=self.metrics,
            patience_s=_PATIENCE_S,
            max_frame_bytes=self.max_frame_bytes,
            lane=self.lane,
            credentials=(
                FixedCredentials()
                if self.tickets is None
                else TicketCredentials(self.tickets, name)
            ),
        )

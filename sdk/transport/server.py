"""The one place that builds gRPC servers.

A servicer is any object with a method for each rpc of its service, named in snake case:
`lookup(request, call) -> response`. The interceptor also covers the decoding of requests, so a bad
frame becomes a typed error like any other.
"""

import os
import socket
from collections.abc import Mapping
from typing import Any, final

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from prometheus_client import CollectorRegistry

from gradmesh.protos import limits
from gradmesh.protos.frame import Frame
from gradmesh.protos.method import from_wire, methods_of, to_wire
from gradmesh.protos.texts import check_texts
from gradmesh.sdk.process.network import SecurityConfig, TransportConfig, join, split
from gradmesh.sdk.process.setting import AddressInUse
from gradmesh.sdk.transport.call import MAX_CALL_S as MAX_CALL_S
from gradmesh.sdk.transport.call import Call as Call
from gradmesh.sdk.transport.call import RpcHandler, current_caller
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.sdk.transport.health import HealthService
from gradmesh.sdk.transport.interceptor import CallInterceptor
from gradmesh.sdk.transport.lane.grpc_stream import EXCHANGE
from gradmesh.sdk.transport.lane.server import LANE_RPCS, OPEN_LANE, LaneServer
from gradmesh.sdk.transport.liveness import LivenessProbe
from gradmesh.sdk.transport.metrics import RpcMetrics
from gradmesh.sdk.transport.security import CallerCheck, TokenCheck, server_credentials
from gradmesh.sdk.transport.server_threads import ServerThreads

_SEND_S = 1.0


@final
class Server:
    """A gRPC server with health service, security, metrics and lanes for hot rpcs.

    Args:
        services: The servicer of each service.
        listen: Address to bind; port 0 takes a free one.
        setting: Name of the setting that holds the address, for the error.
        security: Certificates and token.
        transport: Which lanes are offered, and how many connections are accepted.
        threads: gRPC calls served at once, beside heartbeats.
        max_frame_bytes: Largest message either way.
        registry: Exports the metrics.
        check: Decides who may call; by default the tokens and certificates of `security`.

    Raises:
        AddressInUse: The address cannot be bound.
        ConfigError: The certificates or the token cannot be used, or other machines could call a
            server that asks for neither.
    """

    def __init__(
        self,
        services: Mapping[ServiceDescriptor, object],
        *,
        listen: str,
        setting: str = "listen",
        security: SecurityConfig | None = None,
        transport: TransportConfig | None = None,
        threads: int = 16,
        max_frame_bytes: int = limits.MAX_FRAME_BYTES,
        registry: CollectorRegistry | None = None,
        check: CallerCheck | None = None,
    ) -> None:
        security, transport = security or SecurityConfig(), transport or TransportConfig()
        security.check_listen(setting, listen)
        metrics = RpcMetrics("server", registry)
        self._threads = ServerThreads(threads, transport.max_lanes, max_frame_bytes)
        self._interceptor = CallInterceptor(check or TokenCheck(security), metrics, self._threads)
        handlers = _rpc_handlers(services)
        hot = {h.method.number: h for h in handlers if h.method.number}
        self._lanes = LaneServer(transport, security, listen, hot, metrics, max_frame_bytes)
        self._server = grpc.server(
            self._threads.main,
            interceptors=[self._interceptor],
            options=_options(max_frame_bytes, transport.connections()),
        )
        handlers.append(RpcHandler(OPEN_LANE, self._lanes.open_lane))
        self._health = HealthService(self._threads.inline, self._threads.watchdog)
        generic = [_grpc_handlers(service, handlers, max_frame_bytes) for service in services]
        if hot:
            generic.append(_exchange(self._lanes))
        self._server.add_generic_rpc_handlers([*generic, self._health])
        self.address = self._bind(listen, setting, security)
        self._liveness = LivenessProbe(self._server)

    def _bind(self, listen: str, setting: str, security: SecurityConfig) -> str:
        credentials = server_credentials(security)
        try:
            if credentials is None:
                port = self._server.add_insecure_port(listen)
            else:
                port = self._server.add_secure_port(listen, credentials)
        except RuntimeError as error:
            self._threads.close()
            raise AddressInUse(listen, setting, _why_not(listen)) from error
        return join(split(listen)[0], port)

    def start(self) -> None:
        """Begin to serve."""
        self._server.start()
        self._health.set_serving(True)

    def answers(self) -> bool:
        """Return whether the server answers a health probe that passes through gRPC."""
        return self._liveness.answers()

    def drain(self, grace_s: float) -> None:
        """Refuse new calls, let those under way finish within `grace_s`, then stop."""
        deadline = Deadline.after(grace_s)
        self._interceptor.refuse()
        self._lanes.refuse()
        # Last, so that a probe that reads "not serving" can rely on it.
        self._health.set_serving(False)
        self._interceptor.wait_idle(deadline.remaining_s())
        self._lanes.drain(deadline.remaining_s())
        # Only the last responses are still being sent. Watches of the health service would never
        # end, so they are cut off.
        last_s = min(deadline.remaining_s(), _SEND_S)
        self._server.stop(last_s).wait(last_s + 1)
        self._liveness.close()
        self._health.close()
        self._threads.close()


def _why_not(listen: str) -> str:
    """Return why an address cannot be bound, which gRPC does not report."""
    host, port = split(listen)
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.create_server((host, port), family=family, reuse_port=False):
            return "it was taken a moment ago"
    except OSError as error:
        # Errors of name resolution have negative numbers.
        number = error.errno or 0
        return (os.strerror(number) if number > 0 else str(error)).lower()


# How long a stranger may take to complete a connection, TLS included; our clients wait no longer.
_HANDSHAKE_MS = 5_000
# A peer that vanished, or that holds a connection without use, is disconnected; clients reconnect.
_KEEPALIVE_MS, _KEEPALIVE_TIMEOUT_MS = 60_000, 20_000
_IDLE_MS = 300_000


def _options(max_frame_bytes: int, max_connections: int) -> list[tuple[str, int]]:
    return [
        # Otherwise a second server could share the port and receive half of the calls.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", max_frame_bytes),
        ("grpc.max_send_message_length", max_frame_bytes),
        ("grpc.max_allowed_incoming_connections", max_connections),
        ("grpc.max_concurrent_streams", limits.MAX_STREAMS),
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
        # The limit of streams applies once the client has confirmed it.
        ("grpc.http2.settings_timeout", _HANDSHAKE_MS),
        ("grpc.max_connection_idle_ms", _IDLE_MS),
        # Large windows are for large messages; a stranger can fill them, too.
        ("grpc.http2.bdp_probe", int(max_frame_bytes > limits.MAX_COORDINATOR_BYTES)),
        ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
        # Of a burst of calls that wait for Python, gRPC cancels some at random above the first, and
        # all above the second; 1000 and 3000 by default.
        ("grpc.server.max_pending_requests", limits.MAX_QUEUED_CALLS),
        ("grpc.server.max_pending_requests_hard_limit", 2 * limits.MAX_QUEUED_CALLS),
    ]


def _rpc_handlers(services: Mapping[ServiceDescriptor, object]) -> list[RpcHandler]:
    """Return the handlers of all rpcs but those of lanes, which the server itself serves."""
    return [
        RpcHandler(method, getattr(servicer, method.verb))
        for descriptor, servicer in services.items()
        for method in methods_of(descriptor).values()
        if method.path not in LANE_RPCS
    ]


def _grpc_handlers(
    descriptor: ServiceDescriptor, handlers: list[RpcHandler], max_frame_bytes: int
) -> grpc.GenericRpcHandler:
    by_name: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        handler.method.name: grpc.unary_unary_rpc_method_handler(
            _behaviour(handler, max_frame_bytes)
        )
        for handler in handlers
        if handler.method.service == descriptor.full_name
    }
    return grpc.method_handlers_generic_handler(descriptor.full_name, by_name)


def _exchange(lanes: LaneServer) -> grpc.GenericRpcHandler:
    handler: grpc.RpcMethodHandler[Any, Any] = grpc.stream_stream_rpc_method_handler(lanes.exchange)
    return grpc.method_handlers_generic_handler(EXCHANGE.service, {EXCHANGE.name: handler})


def _behaviour(handler: RpcHandler, max_frame_bytes: int) -> Any:
    """Return the function that turns request bytes into response bytes."""
    method, serve = handler

    def behaviour(data: bytes, context: grpc.ServicerContext) -> bytes:
        request = from_wire(data, method.request_type, max_frame_bytes)
        if not method.number:
            check_texts(request.message if isinstance(request, Frame) else request)
        remaining = context.time_remaining()
        limit = MAX_CALL_S if remaining is None else min(remaining, MAX_CALL_S)
        call = Call(Deadline.after(limit), context.peer(), caller=current_caller())
        response = serve(request, call)
        return to_wire(response, max_frame_bytes)

    return behaviour

"""The one place that builds gRPC servers.

A servicer is any object with a method for each rpc of its service, named in snake case:
`lookup(request, call) -> response`. The interceptor also covers the decoding of requests, so a bad
frame becomes a typed error like any other.
"""

import logging
import os
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, final

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry

from gradmesh.protos import limits
from gradmesh.protos.method import from_wire, methods_of, to_wire
from gradmesh.sdk.process.network import SecurityConfig, TransportConfig, join, split
from gradmesh.sdk.process.setting import AddressInUse
from gradmesh.sdk.transport.boundary import CallInterceptor
from gradmesh.sdk.transport.call import MAX_CALL_S as MAX_CALL_S
from gradmesh.sdk.transport.call import Call as Call
from gradmesh.sdk.transport.call import RpcHandler, current_caller
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.sdk.transport.lane.grpc_stream import EXCHANGE
from gradmesh.sdk.transport.lane.server import LANE_RPCS, OPEN_LANE, LaneServer
from gradmesh.sdk.transport.metrics import RpcMetrics
from gradmesh.sdk.transport.security import CallerCheck, server_credentials

_log = logging.getLogger(__name__)

_SEND_S = 1.0


@final
class Server:
    """A gRPC server with health service, security, metrics and lanes for hot rpcs.

    Args:
        services: The servicer of each service.
        listen: Address to bind; port 0 takes a free one.
        setting: Name of the setting that holds the address, for the error.
        security: Certificates and token.
        transport: Which lanes are offered.
        threads: gRPC calls served at once.
        max_frame_bytes: Largest message either way.
        registry: Exports the metrics.

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
    ) -> None:
        security = security or SecurityConfig()
        security.check_listen(setting, listen)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="rpc")
        metrics = RpcMetrics("server", registry)
        self._interceptor = CallInterceptor(CallerCheck(security), metrics)
        handlers = _rpc_handlers(services)
        hot = {h.method.number: h for h in handlers if h.method.number}
        self._lanes = LaneServer(
            transport or TransportConfig(), security, listen, hot, metrics, max_frame_bytes
        )
        self._server = grpc.server(
            self._pool, interceptors=[self._interceptor], options=_options(max_frame_bytes)
        )
        handlers.append(RpcHandler(OPEN_LANE, self._lanes.open_lane))
        # A stream occupies its thread while it lasts, so streams have their own threads.
        streams = (transport or TransportConfig()).max_lanes
        self._stream_pool = ThreadPoolExecutor(streams, thread_name_prefix="lane-stream")
        self._server.add_generic_rpc_handlers(
            [_grpc_handlers(descriptor, handlers, max_frame_bytes) for descriptor in services]
        )
        self._server.add_generic_rpc_handlers([_exchange(self._lanes, self._stream_pool)])
        self._health = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self.address = self._bind(listen, setting, security)

    def _bind(self, listen: str, setting: str, security: SecurityConfig) -> str:
        credentials = server_credentials(security)
        try:
            if credentials is None:
                port = self._server.add_insecure_port(listen)
            else:
                port = self._server.add_secure_port(listen, credentials)
        except RuntimeError as error:
            self._pool.shutdown(wait=False)
            raise AddressInUse(listen, setting, _why_not(listen)) from error
        return join(split(listen)[0], port)

    def start(self) -> None:
        """Begin to serve."""
        self._server.start()
        self._health.set("", health_pb2.HealthCheckResponse.SERVING)

    def drain(self, grace_s: float) -> None:
        """Refuse new calls, let those under way finish within `grace_s`, then stop."""
        deadline = Deadline.after(grace_s)
        self._interceptor.refuse()
        self._lanes.refuse()
        # Last, so that a probe that reads "not serving" can rely on it.
        self._health.enter_graceful_shutdown()
        self._interceptor.wait_idle(deadline.remaining_s())
        self._lanes.drain(deadline.remaining_s())
        # Only the last responses are still being sent. Watches of the health service would never
        # end, so they are cut off.
        last_s = min(deadline.remaining_s(), _SEND_S)
        self._server.stop(last_s).wait(last_s + 1)
        for pool in (self._pool, self._stream_pool):
            pool.shutdown(wait=False, cancel_futures=True)


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


def _options(max_frame_bytes: int) -> list[tuple[str, int]]:
    return [
        # Otherwise a second server could share the port and receive half of the calls.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", max_frame_bytes),
        ("grpc.max_send_message_length", max_frame_bytes),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
        # Of a burst of calls that wait for Python, gRPC cancels some at random above the first, and
        # all above the second; 1000 and 3000 by default.
        ("grpc.server.max_pending_requests", 8_192),
        ("grpc.server.max_pending_requests_hard_limit", 16_384),
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


def _exchange(lanes: LaneServer, pool: ThreadPoolExecutor) -> grpc.GenericRpcHandler:
    behaviour: Any = partial(lanes.exchange)
    behaviour.experimental_thread_pool = pool
    handler: grpc.RpcMethodHandler[Any, Any] = grpc.stream_stream_rpc_method_handler(behaviour)
    return grpc.method_handlers_generic_handler(EXCHANGE.service, {EXCHANGE.name: handler})


def _behaviour(handler: RpcHandler, max_frame_bytes: int) -> Any:
    """Return the function that turns request bytes into response bytes."""
    method, serve = handler

    def behaviour(data: bytes, context: grpc.ServicerContext) -> bytes:
        request = from_wire(data, method.request_type, max_frame_bytes)
        remaining = context.time_remaining()
        limit = MAX_CALL_S if remaining is None else min(remaining, MAX_CALL_S)
        call = Call(Deadline.after(limit), context.peer(), caller=current_caller())
        response = serve(request, call)
        return to_wire(response, max_frame_bytes)

    return behaviour

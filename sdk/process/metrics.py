"""The HTTP endpoint for monitoring: Prometheus metrics and health probes."""

import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Self, final
from urllib.parse import urlsplit

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

from gradmesh.sdk.process.network import join, listening, split
from gradmesh.sdk.process.newest_sockets import NewestSockets
from gradmesh.sdk.process.setting import AddressInUse, Section, setting

# Requests under way at once; each has a thread.
_MAX_REQUESTS = 64


def _listening_or_off(value: str) -> str:
    return value if value == "off" else listening(value)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsConfig(Section):
    """Where the process serves its metrics and health."""

    section: ClassVar[str] = "metrics"
    flag_prefix: ClassVar[str] = "metrics-"

    listen: str = setting(
        "off",
        "Address of the HTTP endpoint with /metrics, /healthz and /readyz, or off.",
        check=_listening_or_off,
    )


def new_registry() -> CollectorRegistry:
    """Return a registry with the metrics of the process itself: memory, CPU, files, GC."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


@final
class MetricsEndpoint:
    """Serves GET /metrics, /healthz and /readyz until it is closed; a context manager.

    Args:
        listen: Address to bind; port 0 takes a free one.
        registry: The metrics that /metrics serves.
        healthy: Called by /healthz and /readyz; False responds 503, so that no new work is sent.
        ready: Called by /readyz, too: whether the process has begun its work.
        answers: Called by /healthz, too: whether the process serves calls.

    Raises:
        AddressInUse: The address cannot be bound.
    """

    def __init__(
        self,
        listen: str,
        registry: CollectorRegistry,
        healthy: Callable[[], bool],
        ready: Callable[[], bool] = lambda: True,
        answers: Callable[[], bool] = lambda: True,
    ) -> None:
        host, port = split(listen)
        try:
            self._server = _Server((host, port), registry, healthy, ready, answers)
        except OSError as error:
            raise AddressInUse(listen, "metrics.listen", error.strerror or str(error)) from error
        self.address = join(host, self._server.server_port)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop serving and free the port; may be called twice."""
        self._server.shutdown()
        self._thread.join(5)
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


@final
class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # A scraper that holds its connection open must not delay the end of the process.
    block_on_close = False
    request_queue_size = 128

    def __init__(
        self,
        address: tuple[str, int],
        registry: CollectorRegistry,
        healthy: Callable[[], bool],
        ready: Callable[[], bool],
        answers: Callable[[], bool],
    ) -> None:
        self.registry = registry
        self.healthy = healthy
        self.ready = ready
        self.answers = answers
        self._requests = NewestSockets(_MAX_REQUESTS)
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread of its own."""
        self._requests.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        self._requests.remove(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log bugs, but not clients that have gone or were too slow."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


@final
class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 10

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path == "/metrics":
            self._reply(HTTPStatus.OK, generate_latest(self.server.registry), CONTENT_TYPE_LATEST)
        elif path not in ("/healthz", "/readyz"):
            self._reply(HTTPStatus.NOT_FOUND, b"there is /metrics, /healthz and /readyz\n")
        elif not self.server.healthy():
            self._reply(HTTPStatus.SERVICE_UNAVAILABLE, b"draining\n")
        elif path == "/healthz" and not self.server.answers():
            self._reply(HTTPStatus.SERVICE_UNAVAILABLE, b"calls are not answered\n")
        elif path == "/readyz" and not self.server.ready():
            self._reply(HTTPStatus.SERVICE_UNAVAILABLE, b"starting\n")
        else:
            self._reply(HTTPStatus.OK, b"ok\n")

    def _reply(self, status: HTTPStatus, body: bytes, kind: str = "text/plain") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: scrapes arrive every few seconds."""

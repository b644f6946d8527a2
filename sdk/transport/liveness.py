"""Liveness of a gRPC server, seen from inside its process: a health probe through gRPC itself.

The probe enters at a socket of its own, which exists on this machine only and serves nothing but
health: a flood of connections to the public port, or a certificate that has expired, does not make
the process look dead.
"""

import os
import secrets
import threading
import time
from typing import final

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from gradmesh.sdk.transport.health import CHECK_PATH

# A busy process answers late; an orchestrator waits 5 s.
_PROBE_S = 3.0
# Probes of many clients become one per second.
_FRESH_S = 1.0


@final
class LivenessProbe:
    """Probes one server of this process.

    Args:
        server: Not started yet; gets one more socket.
        probe_s: How long a probe waits.
        fresh_s: How long its outcome is used.
    """

    def __init__(
        self, server: grpc.Server, probe_s: float = _PROBE_S, fresh_s: float = _FRESH_S
    ) -> None:
        self._address = f"unix-abstract:gradmesh-health-{os.getpid()}-{secrets.token_hex(8)}"
        server.add_insecure_port(self._address)
        self._probe_s = probe_s
        self._fresh_s = fresh_s
        self._lock = threading.Lock()  # guards all below; held during a probe, so one runs at once
        self._channel: grpc.Channel | None = None
        self._answered = True
        self._until = 0.0
        self._closed = False

    def answers(self) -> bool:
        """Return whether the server answered a probe within the last second, or answers one now."""
        with self._lock:
            if time.monotonic() >= self._until and not self._closed:
                self._answered = self._probe()
                self._until = time.monotonic() + self._fresh_s
            return self._answered

    def _probe(self) -> bool:
        if self._channel is None:
            self._channel = grpc.insecure_channel(self._address)
        check: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(CHECK_PATH)
        try:
            health_pb2.HealthCheckResponse.FromString(check(b"", timeout=self._probe_s))
        except (grpc.RpcError, DecodeError):
            return False
        return True

    def close(self) -> None:
        """Probe no more; may be called twice."""
        with self._lock:
            self._closed = True
            if self._channel is not None:
                self._channel.close()

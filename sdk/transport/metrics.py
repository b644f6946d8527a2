"""Figures of every rpc a process serves and makes, for Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Histogram

_SECONDS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)


class RpcMetrics:
    """Counts calls, their time and their bytes by rpc and outcome.

    Args:
        registry: Where the figures are shown; a private one when nobody looks.
        side: "server" or "client".
    """

    def __init__(self, side: str, registry: CollectorRegistry | None = None) -> None:
        registry = registry or CollectorRegistry()
        prefix = f"gradmesh_rpc_{side}"
        self._calls = Counter(
            f"{prefix}_calls", "Finished calls", ["rpc", "status"], registry=registry
        )
        self._seconds = Histogram(
            f"{prefix}_seconds", "Time of a call", ["rpc"], buckets=_SECONDS, registry=registry
        )
        self._bytes = Counter(
            f"{prefix}_bytes", "Message bytes", ["rpc", "direction"], registry=registry
        )

    def observe(self, rpc: str, status: str, seconds: float, sent: int, received: int) -> None:
        """Record one finished call."""
        self._calls.labels(rpc, status).inc()
        self._seconds.labels(rpc).observe(seconds)
        self._bytes.labels(rpc, "sent").inc(sent)
        self._bytes.labels(rpc, "received").inc(received)

"""Figures of every rpc a process serves and makes, for Prometheus."""

from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram

_SECONDS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)


class _Figures(NamedTuple):
    """The figures of one rpc with one outcome on one lane."""

    calls: Counter
    seconds: Histogram
    sent: Counter
    received: Counter


class RpcMetrics:
    """Counts calls, their time and their bytes by rpc, outcome and lane.

    Args:
        registry: Where the figures are shown; a private one when nobody looks.
        side: "server" or "client".
    """

    def __init__(self, side: str, registry: CollectorRegistry | None = None) -> None:
        registry = registry or CollectorRegistry()
        prefix = f"gradmesh_rpc_{side}"
        self._calls = Counter(
            f"{prefix}_calls", "Finished calls", ["rpc", "status", "lane"], registry=registry
        )
        self._seconds = Histogram(
            f"{prefix}_seconds", "Time of a call", ["rpc"], buckets=_SECONDS, registry=registry
        )
        self._bytes = Counter(
            f"{prefix}_bytes", "Message bytes", ["rpc", "direction"], registry=registry
        )
        # Finding a figure by its labels costs more than counting.
        self._found: dict[tuple[str, str, str], _Figures] = {}

    def observe(
        self,
        rpc: str,
        status: str,
        seconds: float,
        sent: int,
        received: int,
        lane: str = "grpc",
    ) -> None:
        """Record one finished call."""
        figures = self._found.get((rpc, status, lane)) or self._find(rpc, status, lane)
        figures.calls.inc()
        figures.seconds.observe(seconds)
        figures.sent.inc(sent)
        figures.received.inc(received)

    def _find(self, rpc: str, status: str, lane: str) -> _Figures:
        figures = _Figures(
            self._calls.labels(rpc, status, lane),
            self._seconds.labels(rpc),
            self._bytes.labels(rpc, "sent"),
            self._bytes.labels(rpc, "received"),
        )
        self._found[rpc, status, lane] = figures
        return figures

"""Metrics of every rpc that a process serves and makes, for Prometheus.

Calls are counted in plain numbers, which a scrape turns into Prometheus metric families: a call on
a lane takes tens of microseconds, and the library's own counters would take ten of them.
"""

import threading
from bisect import bisect_left
from collections.abc import Iterator
from typing import final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

_SECONDS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)


@final
class _CallStats:
    """Counts of one rpc with one outcome on one lane."""

    __slots__ = ("buckets", "lock", "received", "seconds", "sent")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.buckets = [0] * (len(_SECONDS) + 1)
        self.seconds = 0.0
        self.sent = 0
        self.received = 0


@final
class RpcMetrics(Collector):
    """Counts calls, their time and their bytes by rpc, outcome and lane.

    Args:
        registry: Exports the metrics; None exports none.
        side: "server" or "client".
    """

    def __init__(self, side: str, registry: CollectorRegistry | None = None) -> None:
        self._prefix = f"gradmesh_rpc_{side}"
        self._found: dict[tuple[str, str, str], _CallStats] = {}
        if registry is not None:
            registry.register(self)

    def observe(
        self,
        rpc: str,
        status: str,
        seconds: float,
        sent: int,
        received: int,
        lane: str = "unary",
    ) -> None:
        """Record one finished call."""
        stats = self._found.get((rpc, status, lane))
        if stats is None:
            stats = self._found.setdefault((rpc, status, lane), _CallStats())
        bucket = bisect_left(_SECONDS, seconds)
        with stats.lock:
            stats.buckets[bucket] += 1
            stats.seconds += seconds
            stats.sent += sent
            stats.received += received

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families."""
        calls = CounterMetricFamily(
            f"{self._prefix}_calls",
            "Finished calls by outcome and lane (shm, tcp, stream, unary)",
            labels=["rpc", "status", "lane"],
        )
        moved = CounterMetricFamily(
            f"{self._prefix}_bytes", "Message bytes", labels=["rpc", "direction"]
        )
        times = HistogramMetricFamily(f"{self._prefix}_seconds", "Time of a call", labels=["rpc"])
        by_rpc: dict[str, _CallStats] = {}
        for (rpc, status, lane), stats in sorted(self._found.items()):
            with stats.lock:
                calls.add_metric([rpc, status, lane], sum(stats.buckets))
                _add(by_rpc.setdefault(rpc, _CallStats()), stats)
        for rpc, total in by_rpc.items():
            moved.add_metric([rpc, "sent"], total.sent)
            moved.add_metric([rpc, "received"], total.received)
            times.add_metric([rpc], _cumulative(total.buckets), total.seconds)
        yield from (calls, moved, times)


def _add(total: _CallStats, part: _CallStats) -> None:
    total.buckets = [a + b for a, b in zip(total.buckets, part.buckets, strict=True)]
    total.seconds += part.seconds
    total.sent += part.sent
    total.received += part.received


def _cumulative(buckets: list[int]) -> list[tuple[str, float]]:
    bounds = [*(str(bound) for bound in _SECONDS), "+Inf"]
    counts = [sum(buckets[: index + 1]) for index in range(len(buckets))]
    return list(zip(bounds, map(float, counts), strict=True))

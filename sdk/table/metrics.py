"""Metrics of the lookups and pushes of a process, for Prometheus.

They are plain numbers until Prometheus collects them: a lookup of one row must not pay for
counters.
"""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import final

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.registry import Collector

from gradmesh.protos.errors import InvalidRequest
from gradmesh.sdk.transport.metrics import RpcMetrics

_METRICS = {
    "lookups": "Requests for rows",
    "lookup_ids": "Ids asked for, with repetitions",
    "lookup_rows": "Distinct rows that travelled",
    "lookup_bytes": "Bytes of these rows",
    "pushes": "Pushes of gradients outside contexts",
    "pushed_rows": "Distinct rows that pushes changed",
    "prefetch_hits": "Lookups whose rows had been prefetched",
    "prefetch_misses": "Prefetched batches that were discarded",
    "prefetched_rows": "Prefetched rows that were used",
    "refreshed_rows": "Prefetched rows that were refreshed because a step changed them",
    "cache_hits": "Distinct ids answered from a reader's cache",
}


@final
class TableMetrics(Collector):
    """Counts lookups, ids, rows, pushes and the effect of prefetching.

    The share of distinct ids is lookup_rows / lookup_ids; the share of prefetched rows that a step
    in between changed is refreshed_rows / prefetched_rows.

    Args:
        registry: Where to register; nowhere by default.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._lock = threading.Lock()  # guards _values
        self._values = dict.fromkeys(_METRICS, 0)
        if registry is not None:
            registry.register(self)

    def add(self, **amounts: int) -> None:
        """Add to metrics by name."""
        with self._lock:
            for name, amount in amounts.items():
                self._values[name] += amount

    def count_lookup(self, ids: int, rows: int, size: int) -> None:
        """Count one request for rows: ids with repetitions, distinct rows and their bytes."""
        with self._lock:
            values = self._values
            values["lookups"] += 1
            values["lookup_ids"] += ids
            values["lookup_rows"] += rows
            values["lookup_bytes"] += size

    def count_push(self, rows: int) -> None:
        """Count one push and the distinct rows it changed."""
        with self._lock:
            self._values["pushes"] += 1
            self._values["pushed_rows"] += rows

    def value(self, name: str) -> int:
        """Return a metric."""
        return self._values[name]

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics for Prometheus."""
        for name, text in _METRICS.items():
            yield CounterMetricFamily(f"gradmesh_table_{name}", text, value=self._values[name])


@final
class ClientMetrics:
    """The metrics of one client: of its calls, and of its lookups and pushes.

    Args:
        registry: Where to register them until `close`; nowhere by default.

    Raises:
        InvalidRequest: The registry has the metrics of another client.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.rpc = RpcMetrics("client")
        self.tables = TableMetrics()
        self._registered = ExitStack()
        if registry is None:
            return
        try:
            for collector in (self.rpc, self.tables):
                registry.register(collector)
                self._registered.callback(registry.unregister, collector)
        except ValueError as error:
            self.close()
            raise InvalidRequest(
                "the registry exports the metrics of another client; close that one, or give each "
                f"a registry of its own ({error})"
            ) from error

    def close(self) -> None:
        """Unregister them; may be called twice."""
        self._registered.close()

"""Figures of what a process asks of tables, for Prometheus.

Plain numbers that are shown when somebody looks: a lookup of one row must not pay for counters.
"""

import threading
from collections.abc import Iterator
from typing import final

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.registry import Collector

_FIGURES = {
    "lookups": "Requests for rows",
    "lookup_ids": "Ids asked for, with repetitions",
    "lookup_rows": "Distinct rows that travelled",
    "lookup_bytes": "Bytes of these rows",
    "pushes": "Pushes of gradients outside contexts",
    "pushed_rows": "Distinct rows that pushes changed",
    "prefetch_hits": "Lookups whose rows had been fetched ahead",
    "prefetch_misses": "Batches fetched ahead in vain",
    "prefetched_rows": "Rows fetched ahead that were used",
    "refreshed_rows": "Those of them that came once more",
    "cache_hits": "Distinct ids answered from a reader's cache",
}


@final
class TableMetrics(Collector):
    """Counts lookups, ids, rows, pushes and what came of prefetching.

    The share of distinct ids is lookup_rows / lookup_ids; the share of prefetched rows that a step
    in between changed is refreshed_rows / prefetched_rows.

    Args:
        registry: Where the figures are shown; nowhere by default.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._lock = threading.Lock()  # guards _values
        self._values = dict.fromkeys(_FIGURES, 0)
        if registry is not None:
            registry.register(self)

    def add(self, **amounts: int) -> None:
        """Add to figures by name."""
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
        """Count one push of gradients of so many distinct rows."""
        with self._lock:
            self._values["pushes"] += 1
            self._values["pushed_rows"] += rows

    def value(self, name: str) -> int:
        """Return a figure."""
        return self._values[name]

    def collect(self) -> Iterator[Metric]:
        """Yield all figures, as Prometheus wants them."""
        for name, text in _FIGURES.items():
            yield CounterMetricFamily(f"gradmesh_table_{name}", text, value=self._values[name])

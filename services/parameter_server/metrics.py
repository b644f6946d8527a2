"""Metrics of a server's tables for Prometheus, read from the tables at each scrape."""

from collections.abc import Callable, Iterable
from typing import final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gradmesh.protos.parameter_server.v1 import parameter_server_pb2 as pb
from gradmesh.services.parameter_server.store import TableStore
from gradmesh.services.parameter_server.table import TableShard

_GAUGES: dict[str, tuple[str, Callable[[TableShard], float]]] = {
    "rows": ("Rows held.", lambda t: t.row_count),
    "bytes": ("Memory of rows, state and index.", lambda t: t.bytes),
    "file_bytes": ("Disk of rows that are not hot.", lambda t: t.file_bytes),
    "steps": ("Steps applied.", lambda t: t.steps),
    "hit_ratio": ("Ids looked up that had a row.", lambda t: t.stats.hit_rate),
    "unique_ratio": ("Ids that travelled, of those asked for.", lambda t: t.stats.unique_ratio),
    "stalest_steps": (
        "Most steps applied between a lookup and its gradient.",
        lambda t: t.stats.stalest,
    ),
}
_COUNTERS: dict[str, tuple[str, Callable[[TableShard], float]]] = {
    "lookups": ("Calls that read rows.", lambda t: t.stats.lookups),
    "ids": ("Ids looked up.", lambda t: t.stats.ids),
    "hits": ("Ids looked up that had a row.", lambda t: t.stats.hits),
    "admissions": ("Rows made.", lambda t: t.stats.admitted),
    "refusals": ("Uses of ids that were not admitted.", lambda t: t.stats.refused),
    "evictions": ("Rows evicted or expired.", lambda t: t.evicted),
    "dropped_gradients": ("Gradients without a row.", lambda t: t.stats.dropped),
    "gradients": ("Gradients of lookups applied.", lambda t: t.stats.gradients),
    "staleness_steps": (
        "Steps applied between lookups and their gradients.",
        lambda t: t.stats.staleness,
    ),
}


@final
class TableCollector(Collector):
    """Collects the metrics of a store's tables; costs nothing between scrapes.

    Args:
        store: The store of the tables.
        registry: Where the collector is registered.
    """

    def __init__(self, store: TableStore, registry: CollectorRegistry) -> None:
        self._store = store
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """Return all metrics."""
        tables = self._store.tables()
        for name, (help_, value) in _GAUGES.items():
            gauge = GaugeMetricFamily(f"gradmesh_table_{name}", help_, labels=["table"])
            for table in tables:
                gauge.add_metric([table.spec.name], value(table))
            yield gauge
        for name, (help_, value) in _COUNTERS.items():
            counter = CounterMetricFamily(f"gradmesh_table_{name}", help_, labels=["table"])
            for table in tables:
                counter.add_metric([table.spec.name], value(table))
            yield counter
        yield GaugeMetricFamily(
            "gradmesh_run_lag_steps",
            "Steps that some trainer has sent gradients of and that are not applied yet.",
            self._store.lag_steps(),
        )


def table_report(table: TableShard) -> pb.InspectTableResponse:
    """Return the state of this server's shard of a table."""
    rows, held, stats = table.row_count, table.bytes, table.stats
    return pb.InspectTableResponse(
        spec=table.spec,
        rows=rows,
        bytes=held,
        steps=table.steps,
        expected_row_bytes=table.expected_row_bytes,
        actual_row_bytes=held / rows if rows else 0.0,
        file_bytes=table.file_bytes,
        lookups=stats.lookups,
        ids=stats.ids,
        hit_rate=stats.hit_rate,
        admitted=stats.admitted,
        refused=stats.refused,
        evicted=table.evicted,
        dropped=stats.dropped,
        staleness=stats.staleness / stats.gradients if stats.gradients else 0.0,
    )

"""Figures of what a process asks of tables, for Prometheus."""

from typing import final

from prometheus_client import CollectorRegistry, Counter


@final
class TableMetrics:
    """Counts lookups, ids, rows, pushes and what came of prefetching.

    The share of distinct ids is `rows / ids`; the share of prefetched rows that a step in between
    changed is `refreshed_rows / prefetched_rows`.

    Args:
        registry: Where the figures are shown; a private one when nobody looks.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        registry = registry or CollectorRegistry()

        def counter(name: str, text: str) -> Counter:
            return Counter(f"gradmesh_table_{name}", text, registry=registry)

        self.lookups = counter("lookups", "Requests for rows")
        self.ids = counter("lookup_ids", "Ids asked for, with repetitions")
        self.rows = counter("lookup_rows", "Distinct rows that travelled")
        self.row_bytes = counter("lookup_bytes", "Bytes of these rows")
        self.pushes = counter("pushes", "Pushes of gradients outside contexts")
        self.pushed_rows = counter("pushed_rows", "Distinct rows that pushes changed")
        self.prefetched_rows = counter("prefetched_rows", "Rows fetched ahead of their step")
        self.prefetch_hits = counter("prefetch_hits", "Lookups whose rows had been fetched ahead")
        self.prefetch_misses = counter("prefetch_misses", "Rows fetched ahead for other ids")
        self.refreshed_rows = counter("refreshed_rows", "Prefetched rows that came once more")
        self.cache_hits = counter("cache_hits", "Distinct ids answered from a reader's cache")

    def observe_lookup(self, ids: int, rows: int, row_bytes: int) -> None:
        """Record one request for rows."""
        self.lookups.inc()
        self.ids.inc(ids)
        self.rows.inc(rows)
        self.row_bytes.inc(row_bytes)

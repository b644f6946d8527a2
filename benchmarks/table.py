"""Cost of a lookup inside a server by table size, for dense and for hash tables.

The floor is a plain gather of as many rows from an array of the same size: what cache and page
misses cost anyway. A lookup is flat when its ratio to the floor does not fall.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from gradmesh.benchmarks.report import Echo
from gradmesh.engine.optim import SGD
from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.protos.dtype import wire_dtype
from gradmesh.protos.frame import Array
from gradmesh.protos.sharding import Ids, ShardMap, even_buckets
from gradmesh.sdk.table.recipe import Initializer, to_recipe
from gradmesh.services.parameter_server.table import TableShard

SIZES = (1_000_000, 10_000_000, 50_000_000)
"""Rows of the tables."""

_CHUNK_ROWS = 100_000


def run(
    sizes: Sequence[int] = SIZES,
    *,
    dim: int = 64,
    ids: int = 65_536,
    seconds: float = 2.0,
    on_row: Callable[[dict[str, Any]], object] = lambda row: None,
) -> list[dict[str, Any]]:
    """Measure tables of several sizes, both kinds in turns with their floor.

    Args:
        sizes: Rows of the tables.
        dim: Elements of a row.
        ids: Looked up at once, drawn evenly from all.
        seconds: About how long a table is measured.
        on_row: Called with each row of the report when it is there.

    Returns:
        Rows of the report: workload, ours and peer (the floor) as medians in seconds, their ratio,
        bytes a row, and `dense_ratio`, how many times the dense table's time a hash table takes.
    """
    report: list[dict[str, Any]] = []
    for size in sizes:
        for row in _measure(size, dim, ids, seconds):
            report.append(row)
            on_row(row)
    return report


def command(echo: Echo, *, sizes: Sequence[int], dim: int, seconds: float) -> Any:
    """Run `gradmesh bench table`."""
    echo(f"{'workload':<24}{'ours p50 µs':>12}{'floor µs':>12}{'ratio':>8}{'of dense':>10}")

    def show(row: dict[str, Any]) -> None:
        times = f"{row['ours'] * 1e6:>12,.0f}{row['peer'] * 1e6:>12,.0f}"
        echo(f"{row['workload']:<24}{times}{row['ratio']:>8.2f}{row['dense_ratio']:>10.2f}")

    return run(sizes, dim=dim, seconds=seconds, on_row=show)


def _measure(size: int, dim: int, ids: int, seconds: float) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    wanted: Ids = rng.integers(0, size, ids)
    out = np.empty((ids, dim), np.float32)
    tables = {kind: _filled(kind, size, dim) for kind in ("dense", "hash")}
    calls: list[Callable[[], object]] = []
    for table in tables.values():
        # The floor reads the table's own memory, so that it misses as much as the lookup does.
        weights, slots = table.weights(), rng.integers(0, size, ids)
        calls.append(partial(_look_up, table, wanted, out))
        calls.append(partial(weights.take, slots, 0, out, "clip"))
    medians = _in_turns(calls, 2 * seconds)
    return [
        {
            "workload": f"lookup-{kind}-{size}",
            "ours": medians[2 * place],
            "peer": medians[2 * place + 1],
            "ratio": medians[2 * place + 1] / medians[2 * place],
            "dense_ratio": medians[2 * place] / medians[0],
            "row_bytes": table.bytes / table.row_count,
            "expected_row_bytes": table.expected_row_bytes,
        }
        for place, (kind, table) in enumerate(tables.items())
    ]


def _look_up(table: TableShard, ids: Ids, out: Array) -> None:
    table.read(table.slots_of(ids), out)


def _filled(kind: str, size: int, dim: int) -> TableShard:
    spec = table_pb2.TableSpec(
        name="bench",
        kind=table_pb2.TABLE_KIND_HASH if kind == "hash" else table_pb2.TABLE_KIND_DENSE,
        rows=0 if kind == "hash" else size,
        dim=dim,
        dtype=_float32(),
        initializer=to_recipe(Initializer.constant(0.5)),
        optimizer=to_recipe(SGD(lr=0.1)),
    )
    shards = ShardMap(1, ["bench"], ["bench"], np.array(even_buckets(1), np.int32))
    table = TableShard(spec, shards, 0)
    for begin in range(0, size, _CHUNK_ROWS):
        table.read(table.slots_of(np.arange(begin, min(begin + _CHUNK_ROWS, size))))
    return table


def _float32() -> Any:
    return wire_dtype(np.dtype(np.float32))


def _in_turns(calls: Sequence[Callable[[], object]], seconds: float) -> list[float]:
    """Return the median processor seconds of each call, made one after the other.

    Processor time, since a call takes longer than the time that a busy system gives a thread.
    """
    samples: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call()
    until = time.perf_counter() + seconds
    while len(samples[0]) < 5 or time.perf_counter() < until:
        for held, call in zip(samples, calls, strict=True):
            begin = time.thread_time()
            call()
            held.append(time.thread_time() - begin)
    return [float(np.median(held)) for held in samples]

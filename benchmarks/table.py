"""What a lookup costs inside a server as its table grows, for dense and for hash tables.

The floor is a plain gather of as many rows from an array of the same size: what cache and page
misses cost whoever does it. A lookup is flat when its ratio to the floor does not fall.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradmesh.engine.kernels import copy_out
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
    """Measure tables of several sizes, each kind in turns with the floor.

    Args:
        sizes: Rows of the tables.
        dim: Elements of a row.
        ids: Looked up at once, drawn evenly from all.
        seconds: About how long one measurement takes.
        on_row: Called with each row of the report when it is there.

    Returns:
        Rows of the report: workload, ours and peer (the floor) as medians in seconds, their ratio,
        bytes a row, and `dense_ratio`, how many times the dense table's time a hash table takes.
    """
    report: list[dict[str, Any]] = []
    for size in sizes:
        dense_s = 0.0
        for kind in ("dense", "hash"):
            row = _measure(kind, size, dim, ids, seconds)
            dense_s = dense_s or row["ours"]
            row["dense_ratio"] = row["ours"] / dense_s
            report.append(row)
            on_row(row)
    return report


def _measure(kind: str, size: int, dim: int, ids: int, seconds: float) -> dict[str, Any]:
    table = _filled(kind, size, dim)
    rng = np.random.default_rng(0)
    wanted: Ids = rng.integers(0, size, ids)
    # The table's own memory, so that the floor misses as much as the lookup does.
    weights, slots = table.weights(), rng.integers(0, size, ids)
    out = np.empty((ids, dim), np.float32)
    ours, floor = _in_turns(
        lambda: table.read(table.slots_of(wanted), out),
        lambda: copy_out(weights, slots, out),
        seconds,
    )
    return {
        "workload": f"lookup-{kind}-{size}",
        "ours": ours,
        "peer": floor,
        "ratio": floor / ours,
        "row_bytes": table.bytes / table.row_count,
        "expected_row_bytes": table.expected_row_bytes,
    }


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
        table.prepare(table.slots_of(np.arange(begin, min(begin + _CHUNK_ROWS, size))))
    return table


def _float32() -> Any:
    return wire_dtype(np.dtype(np.float32))


def _in_turns(
    ours: Callable[[], Array | None], floor: Callable[[], Array | None], seconds: float
) -> tuple[float, float]:
    """Return the median seconds of each, called one after the other: noise hits both."""
    samples: tuple[list[float], list[float]] = ([], [])
    ours()
    floor()
    until = time.perf_counter() + seconds
    while len(samples[0]) < 5 or time.perf_counter() < until:
        for held, call in zip(samples, (ours, floor), strict=True):
            begin = time.perf_counter()
            call()
            held.append(time.perf_counter() - begin)
    return float(np.median(samples[0])), float(np.median(samples[1]))

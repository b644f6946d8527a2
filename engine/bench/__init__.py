"""Benchmarks of the engine, side by side with torch where it is installed."""

from gradmesh.engine.bench.dense import ROWS as ROWS
from gradmesh.engine.bench.dense import bench_dense as bench_dense
from gradmesh.engine.bench.timing import Row as Row
from gradmesh.engine.bench.timing import table as table
from gradmesh.engine.bench.timing import write_json as write_json
from gradmesh.engine.bench.torch_peer import TorchMissing as TorchMissing

__all__ = [
    "ROWS",
    "Row",
    "TorchMissing",
    "bench_dense",
    "table",
    "write_json",
]

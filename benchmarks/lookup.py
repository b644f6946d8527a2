"""Lookups and pushes: one client, one server, dim 64, a million rows, against torch RPC.

The two sides take turns in small blocks, so that other load on the machine hits both. The
peer's processes are stopped while ours work, because they spin when they are idle. This module is
also what our client runs; its arguments are the coordinator's address and the lanes.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradmesh.benchmarks.processes import MeasuringProcess, serve, start, take_turns, timed
from gradmesh.benchmarks.report import HEADING, Echo, Row, as_json, show_line

if TYPE_CHECKING:
    import gradmesh as gm

ROWS = 1_000_000
DIM = 64
LR = 0.01
BATCH = 2048
TABLES = 26
BATCH_ROWS_VARIABLE = "BENCH_BATCH_ROWS"
"""How the parent passes the size of the batch's tables to both sides."""

BATCH_ROWS = int(os.environ.get(BATCH_ROWS_VARIABLE, 100_000))
"""Rows of each of the 26 tables; by default all of them fit into a small machine, twice."""

VARIANTS = 16
"""Different requests in turn, so that no cache holds the rows by chance."""

SIZES = (1, 64, 1024, 65536)
LANES = ("shm", "tcp", "stream")


class LookupLoad(NamedTuple):
    """One workload of the benchmark."""

    name: str
    workload: str
    size: int


def loads() -> list[LookupLoad]:
    """Return all workloads."""
    found = [LookupLoad(f"{w}-{count}", w, count) for w in ("pull", "push") for count in SIZES]
    return [*found, LookupLoad("batch26", "batch", 0)]


def run(
    lanes: Sequence[str],
    against_torch: bool,
    seconds: float,
    blocks: int = 5,
    on_row: Callable[[Row], object] = lambda row: None,
    only: Sequence[LookupLoad] | None = None,
    batch_rows: int = BATCH_ROWS,
    durability: str = "off",
) -> list[Row]:
    """Measure every workload on every lane.

    Args:
        lanes: Which of ours to measure.
        against_torch: Whether the peer takes its turns, too.
        seconds: About how long one workload may take on one side.
        blocks: How often the sides take turns.
        on_row: Called with each row as it is known.
        only: The workloads; all by default.
        batch_rows: Rows of each of the 26 tables of the batch.
        durability: Of our server; off matches the peer, which stores nothing.
    """
    # Imported late: the peer's process imports this module, too, for its ids.
    from gradmesh.launch.local import LocalCluster

    with ExitStack() as stack:
        os.environ[BATCH_ROWS_VARIABLE] = str(batch_rows)
        stack.callback(os.environ.pop, BATCH_ROWS_VARIABLE)
        settings = {"parameter_server.durability": durability}
        cluster = stack.enter_context(LocalCluster(parameter_servers=1, settings=settings))
        chosen = {load.name: (load.workload, load.size) for load in only or loads()}
        return run_lanes(
            "lookup", cluster.address, chosen, lanes, against_torch, seconds, blocks, on_row
        )


def run_lanes(
    module: str,
    address: str,
    loads: Mapping[str, tuple[str, int]],
    lanes: Sequence[str],
    against_torch: bool,
    seconds: float,
    blocks: int,
    on_row: Callable[[Row], object],
) -> list[Row]:
    """Measure workloads on every lane, in turns with the peer.

    Args:
        module: What our client runs; with `_torch` after it, the peer's.
        address: Of the coordinator.
        loads: Workload and count by the name of the row.
        lanes: Which of ours.
        against_torch: Whether the peer takes its turns, too.
        seconds: About how long one workload may take on one side.
        blocks: How often the sides take turns.
        on_row: Called with each row as it is known.
    """
    with ExitStack() as stack:
        ours = stack.enter_context(start(module, address, ",".join(lanes)))
        sides = dict.fromkeys(lanes, ours)
        if against_torch:
            sides["torch"] = stack.enter_context(start(f"{module}_torch", pauses=True))
        rows = []
        for name, (workload, count) in loads.items():
            turns = {
                lane: partial(_measure, side, lane=lane, workload=workload, count=count)
                for lane, side in sides.items()
            }
            times = take_turns(turns, seconds, blocks)
            for lane in lanes:
                rows.append(Row.of(f"{name}-{lane}", times[lane], times.get("torch", [])))
                on_row(rows[-1])
        return rows


def _measure(side: MeasuringProcess, rounds: int, **command: Any) -> list[float]:
    return side.measure(**command, rounds=rounds)


def command(
    echo: Echo,
    *,
    against: str | None,
    lanes: Sequence[str],
    workloads: Sequence[str],
    batch_rows: int,
    pairs: int | None,
    durability: str,
    seconds: float,
) -> Any:
    """Run `gradmesh bench lookup`."""
    if pairs is not None:
        from gradmesh.benchmarks.pairs import command as measure_pairs

        return measure_pairs(echo, pairs=pairs, lanes=lanes, durability=durability, seconds=seconds)
    known = {load.name: load for load in loads()}
    echo(HEADING)
    return as_json(
        run(
            lanes,
            against is not None,
            seconds,
            on_row=lambda row: echo(show_line(row)),
            only=[known[name] for name in workloads],
            batch_rows=batch_rows,
            durability=durability,
        )
    )


@cache
def ids(count: int, variant: int) -> NDArray[np.int64]:
    """Return ids of one request, uniform over the table."""
    return np.random.default_rng([count, variant]).integers(0, ROWS, count)


@cache
def grads(count: int) -> NDArray[np.float32]:
    """Return gradients of one request."""
    return np.random.default_rng(count).standard_normal((count, DIM), np.float32)


@cache
def batch(variant: int) -> NDArray[np.int64]:
    """Return the ids of a batch, [BATCH, TABLES], as skewed as real features are."""
    chance = np.random.default_rng([TABLES, variant])
    return (chance.zipf(1.1, (BATCH, TABLES)) - 1) % BATCH_ROWS


def main(address: str, lanes: list[Any]) -> None:
    """Open the tables over each lane and serve the parent."""
    import gradmesh as gm
    from gradmesh.sdk.process.memory import keep_big_buffers

    # As every process of a cluster does at its start.
    keep_big_buffers()
    meshes = {lane: gm.connect(address, lane=lane) for lane in lanes}

    def measure(lane: str, workload: str, count: int, rounds: int) -> list[float]:
        return timed(_call(meshes[lane], workload, count), rounds)

    serve(measure)


def _call(mesh: "gm.Mesh", workload: str, count: int) -> Callable[[int], object]:
    """Return one call of a workload."""
    import gradmesh as gm

    sgd = gm.optim.SGD(lr=LR)
    if workload == "batch":
        tables = [
            mesh.table(f"bench-{number}", rows=BATCH_ROWS, dim=DIM, optimizer=sgd)
            for number in range(TABLES)
        ]
        layer = gm.nn.RemoteEmbedding(tables)
        return lambda turn: layer(batch(turn % VARIANTS))
    table = mesh.table("bench", rows=ROWS, dim=DIM, optimizer=sgd)
    wanted = [ids(count, variant) for variant in range(VARIANTS)]
    if workload == "pull":
        return lambda turn: table.lookup(wanted[turn % VARIANTS])
    gradients = grads(count)
    return lambda turn: table.push(wanted[turn % VARIANTS], gradients)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2].split(","))

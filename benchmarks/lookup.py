"""Pulling and pushing rows: one client, one server, dim 64, a million rows, against torch RPC.

The two sides take turns in small blocks, so that whatever else the machine does hits both. The
peer's processes are stopped while ours work, because they spin when they are idle.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from gradmesh.benchmarks import worker
from gradmesh.benchmarks.lookup_load import BATCH_ROWS, BATCH_ROWS_VARIABLE
from gradmesh.benchmarks.report import Row
from gradmesh.launch.local import LocalCluster

SIZES = (1, 64, 1024, 65536)
LANES = ("shm", "tcp", "stream")


class Load(NamedTuple):
    """One workload of the benchmark."""

    name: str
    workload: str
    size: int


def loads() -> list[Load]:
    """Return all workloads."""
    found = [Load(f"{w}-{count}", w, count) for w in ("pull", "push") for count in SIZES]
    return [*found, Load("batch26", "batch", 0)]


def run(
    lanes: Sequence[str],
    against_torch: bool,
    seconds: float,
    blocks: int = 5,
    on_row: Callable[[Row], object] = lambda row: None,
    only: Sequence[Load] | None = None,
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
        durability: Of our server; off does what the peer does, which keeps nothing.
    """
    with ExitStack() as stack:
        os.environ[BATCH_ROWS_VARIABLE] = str(batch_rows)
        stack.callback(os.environ.pop, BATCH_ROWS_VARIABLE)
        settings = {"parameter_server.durability": durability}
        cluster = stack.enter_context(LocalCluster(parameter_servers=1, settings=settings))
        home = "gradmesh.benchmarks"
        ours = stack.enter_context(
            worker.start(f"{home}.lookup_ours", cluster.address, ",".join(lanes))
        )
        peer = None
        if against_torch:
            peer = stack.enter_context(worker.start(f"{home}.lookup_torch", pauses=True))
        rows = []
        for load in only or loads():
            for row in _measure(load, lanes, ours, peer, seconds, blocks):
                rows.append(row)
                on_row(row)
        return rows


def _measure(
    load: Load,
    lanes: Sequence[str],
    ours: worker.Worker,
    peer: worker.Worker | None,
    seconds: float,
    blocks: int,
) -> list[Row]:
    sides: dict[str, worker.Worker] = dict.fromkeys(lanes, ours)
    if peer is not None:
        sides["torch"] = peer
    rounds: dict[str, int] = {}
    for lane, side in sides.items():
        command = {"lane": lane, "workload": load.workload, "count": load.size}
        warm = side.measure(**command, rounds=6)
        warm = side.measure(**command, rounds=max(3, min(30, int(0.1 / min(warm)))))
        rounds[lane] = max(3, min(400, int(seconds / blocks / sorted(warm)[len(warm) // 2])))
    times: dict[str, list[float]] = {lane: [] for lane in sides}
    for _ in range(blocks):
        for lane, side in sides.items():
            command = {"lane": lane, "workload": load.workload, "count": load.size}
            times[lane] += side.measure(**command, rounds=rounds[lane])
    theirs = times.get("torch", [])
    return [Row.of(f"{load.name}-{lane}", times[lane], theirs) for lane in lanes]

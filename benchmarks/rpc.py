"""Calls between two processes: registered functions against torch RPC.

The two sides take turns in small blocks, so that whatever else the machine does hits both. The
peer's processes are stopped while ours work, because they spin when they are idle.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from gradmesh.benchmarks import worker
from gradmesh.benchmarks.report import Row
from gradmesh.launch.local import LocalCluster

LANES = ("shm", "tcp", "stream")
CALLEE = "worker-0"


class Load(NamedTuple):
    """One workload of the benchmark."""

    name: str
    size: int


def loads() -> list[Load]:
    """Return all workloads."""
    return [
        Load("null", 0),
        Load("add", 0),
        Load("tensor-1k", 1_000),
        Load("tensor-1m", 1_000_000),
        Load("async-100", 100),
        Load("remote", 0),
        Load("later", 0),
    ]


def run(
    lanes: Sequence[str],
    against_torch: bool,
    seconds: float,
    blocks: int = 5,
    on_row: Callable[[Row], object] = lambda row: None,
    only: Sequence[Load] | None = None,
) -> list[Row]:
    """Measure every workload on every lane.

    Args:
        lanes: Which of ours to measure.
        against_torch: Whether the peer takes its turns, too.
        seconds: About how long one workload may take on one side.
        blocks: How often the sides take turns.
        on_row: Called with each row as it is known.
        only: The workloads; all by default.
    """
    with ExitStack() as stack:
        home = "gradmesh.benchmarks"
        settings = {"rpc.imports": [f"{home}.rpc_ours"]}
        cluster = stack.enter_context(LocalCluster(workers=1, settings=settings))
        ours = stack.enter_context(
            worker.start(f"{home}.rpc_ours", cluster.address, ",".join(lanes))
        )
        peer = None
        if against_torch:
            peer = stack.enter_context(worker.start(f"{home}.rpc_torch", pauses=True))
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
        command = {"lane": lane, "workload": load.name, "count": load.size}
        warm = side.measure(**command, rounds=6)
        warm = side.measure(**command, rounds=max(3, min(30, int(0.1 / min(warm)))))
        rounds[lane] = max(3, min(400, int(seconds / blocks / sorted(warm)[len(warm) // 2])))
    times: dict[str, list[float]] = {lane: [] for lane in sides}
    for _ in range(blocks):
        for lane, side in sides.items():
            command = {"lane": lane, "workload": load.name, "count": load.size}
            times[lane] += side.measure(**command, rounds=rounds[lane])
    theirs = times.get("torch", [])
    return [Row.of(f"{load.name}-{lane}", times[lane], theirs) for lane in lanes]

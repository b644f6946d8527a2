"""Forward, backward and step over several processes: against torch RPC.

Chains, a fan, many contexts, and steps of a distributed optimizer: in sync mode, and on the side
called fast in async mode, which is what torch does.

The sides take turns in small blocks, so that whatever else the machine does hits all of them. The
peer's processes are stopped while ours work, because they spin when they are idle.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from gradmesh.benchmarks import worker
from gradmesh.benchmarks.report import Row
from gradmesh.launch.local import LocalCluster

WORKERS = 5
"""The one that measures, and four that it calls."""

SIDES = ("lane", "fast", "stream")
"""Ours: smart on lanes, fast on lanes, smart on gRPC streams."""


class Load(NamedTuple):
    """One workload of the benchmark."""

    name: str
    kind: str
    size: int


LOADS = [
    Load("chain-1", "chain", 1),
    Load("chain-2", "chain", 2),
    Load("chain-4", "chain", 4),
    Load("fanout-4", "fanout", 4),
    Load("contexts-1000", "contexts", 1000),
    Load("optimizer-4", "optimizer", 4),
]
"""All workloads."""


def run(
    against_torch: bool,
    seconds: float,
    blocks: int = 5,
    on_row: Callable[[Row], object] = lambda row: None,
    only: Sequence[Load] | None = None,
) -> list[Row]:
    """Measure every workload on every side.

    Args:
        against_torch: Whether the peer takes its turns, too.
        seconds: About how long one workload may take on one side.
        blocks: How often the sides take turns.
        on_row: Called with each row as it is known.
        only: The workloads; all by default.
    """
    with ExitStack() as stack:
        home = "gradmesh.benchmarks"
        ours = {}
        for lane in ("auto", "stream"):
            # A mesh each: workers wait for as many as there are.
            cluster = stack.enter_context(LocalCluster(parameter_servers=1))
            ours[lane] = stack.enter_context(
                worker.start(f"{home}.autograd_ours", cluster.address, lane)
            )
        sides = {"lane": ours["auto"], "fast": ours["auto"], "stream": ours["stream"]}
        if against_torch:
            sides["torch"] = stack.enter_context(
                worker.start(f"{home}.autograd_torch", pauses=True)
            )
        rows = []
        for load in only or LOADS:
            for row in _measure(load, sides, seconds, blocks):
                rows.append(row)
                on_row(row)
        return rows


def _measure(load: Load, sides: dict[str, worker.Worker], seconds: float, blocks: int) -> list[Row]:
    commands = {
        side: {
            "kind": load.kind,
            "size": load.size,
            "mode": "fast" if side == "fast" else "smart",
        }
        for side in sides
    }
    rounds: dict[str, int] = {}
    for side, running in sides.items():
        warm = running.measure(**commands[side], rounds=2)
        warm = running.measure(**commands[side], rounds=max(1, min(30, int(0.2 / min(warm)))))
        rounds[side] = max(1, min(400, int(seconds / blocks / sorted(warm)[len(warm) // 2])))
    times: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(blocks):
        for side, running in sides.items():
            # Whoever comes after another finds cold caches; its place in line is not to count.
            running.measure(**commands[side], rounds=max(1, rounds[side] // 10))
            times[side] += running.measure(**commands[side], rounds=rounds[side])
    theirs = times.get("torch", [])
    names = {"lane": load.name, "fast": f"{load.name}-fast", "stream": f"{load.name}-stream"}
    return [Row.of(names[side], times[side], theirs) for side in SIDES]

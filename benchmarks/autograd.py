"""Forward, backward and step over several processes: against torch RPC.

Chains, a fan, many contexts, and steps of a distributed optimizer: in sync mode, and on the side
called fast in async mode, which is what torch does.

The sides take turns in small blocks, so that other load on the machine hits all of them. The
peer's processes are stopped while ours work, because they spin when they are idle.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

from gradmesh.benchmarks.processes import MeasuringProcess, start, take_turns
from gradmesh.benchmarks.report import HEADING, Echo, Row, as_json, show_line
from gradmesh.launch.local import LocalCluster

WORKERS = 5
"""Number of processes: one that measures, and four that it calls."""

SIDES = ("lane", "fast", "stream")
"""Ours: smart on lanes, fast on lanes, smart on gRPC streams."""


class AutogradLoad(NamedTuple):
    """One workload of the benchmark."""

    name: str
    kind: str
    size: int


LOADS = [
    AutogradLoad("chain-1", "chain", 1),
    AutogradLoad("chain-2", "chain", 2),
    AutogradLoad("chain-4", "chain", 4),
    AutogradLoad("fanout-4", "fanout", 4),
    AutogradLoad("contexts-1000", "contexts", 1000),
    AutogradLoad("optimizer-4", "optimizer", 4),
]
"""All workloads."""


def run(
    against_torch: bool,
    seconds: float,
    blocks: int = 5,
    on_row: Callable[[Row], object] = lambda row: None,
    only: Sequence[AutogradLoad] | None = None,
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
        ours = {}
        for lane in ("auto", "stream"):
            # A mesh each: workers wait for as many as there are.
            cluster = stack.enter_context(LocalCluster(parameter_servers=1))
            ours[lane] = stack.enter_context(start("autograd_ours", cluster.address, lane))
        sides = {"lane": ours["auto"], "fast": ours["auto"], "stream": ours["stream"]}
        if against_torch:
            sides["torch"] = stack.enter_context(start("autograd_torch", pauses=True))
        rows = []
        for load in only or LOADS:
            for row in _measure(load, sides, seconds, blocks):
                rows.append(row)
                on_row(row)
        return rows


def _measure(
    load: AutogradLoad, sides: dict[str, MeasuringProcess], seconds: float, blocks: int
) -> list[Row]:
    def measure(side: str, rounds: int) -> list[float]:
        mode = "fast" if side == "fast" else "smart"
        return sides[side].measure(kind=load.kind, size=load.size, mode=mode, rounds=rounds)

    turns = {side: partial(measure, side) for side in sides}
    times = take_turns(
        turns, seconds, blocks, warm_rounds=2, warm_s=0.2, least=1, most=400, rewarms=True
    )
    theirs = times.get("torch", [])
    names = {"lane": load.name, "fast": f"{load.name}-fast", "stream": f"{load.name}-stream"}
    return [Row.of(names[side], times[side], theirs) for side in SIDES]


def command(echo: Echo, *, against: str | None, workloads: Sequence[str], seconds: float) -> Any:
    """Run `gradmesh bench autograd`."""
    echo(HEADING)
    known = {load.name: load for load in LOADS}
    return as_json(
        run(
            against is not None,
            seconds,
            on_row=lambda row: echo(show_line(row)),
            only=[known[name] for name in workloads],
        )
    )

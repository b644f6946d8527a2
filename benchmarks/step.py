"""Cost of a training step with and without coordination, a log, or periodic checkpoints.

Each side is a cluster of real processes with two parameter servers; one trainer process takes steps
on all of them in turns, in small blocks, so that other load on the machine hits all alike.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from gradmesh.benchmarks.processes import start
from gradmesh.benchmarks.report import HEADING, Echo, Row, as_json, show_line
from gradmesh.launch.local import LocalCluster

WORKLOADS = ("small", "dlrm")


class StepSide(NamedTuple):
    """One way to train.

    Args:
        durability: Of the servers.
        coordinated: Whether steps are those of a synchronous run; otherwise each context applies
            by itself.
    """

    durability: str
    coordinated: bool = True


DURABILITY = {"off": StepSide("off"), "os": StepSide("os"), "fsync": StepSide("fsync")}
"""Sides of `gradmesh bench durability`; the first is what the others are compared with."""

COORDINATION = {"none": StepSide("off", coordinated=False), "sync": StepSide("off")}
"""Sides of `gradmesh bench step`."""


def run(
    sides: Mapping[str, StepSide],
    workloads: Sequence[str],
    seconds: float,
    blocks: int = 10,
    on_row: Callable[[Row], object] = lambda row: None,
) -> list[Row]:
    """Measure steps on every side; rows compare each with the first.

    Args:
        sides: By name, the yardstick first.
        workloads: Names.
        seconds: About how long one workload may take on one side.
        blocks: How often the sides take turns.
        on_row: Called with each row as it is known.
    """
    rows = []
    for workload in workloads:
        times = _measure(workload, sides, seconds, blocks)
        first = next(iter(sides))
        for name in list(sides)[1:]:
            rows.append(Row.of(f"{workload}-{name}", times[name], times[first]))
            on_row(rows[-1])
    return rows


def _measure(
    workload: str, sides: Mapping[str, StepSide], seconds: float, blocks: int
) -> dict[str, list[float]]:
    with ExitStack() as stack:
        addresses = []
        for name, side in sides.items():
            settings = {
                "parameter_server.durability": side.durability,
                "coordinator.trainers": 1 if side.coordinated else 0,
            }
            cluster = stack.enter_context(LocalCluster(parameter_servers=2, settings=settings))
            addresses.append(f"{name}={int(side.coordinated)}={cluster.address}")
        trainer = stack.enter_context(start("step_ours", workload, *addresses))
        rounds = 3
        for name in sides:
            trainer.measure(side=name, rounds=5)
            warm = trainer.measure(side=name, rounds=5)
            rounds = max(rounds, min(200, int(seconds / blocks / sorted(warm)[2])))
        times: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(blocks):
            for name in sides:
                times[name] += trainer.measure(side=name, rounds=rounds)
        return times


def cost(row: Row) -> float:
    """Return what a side adds to a step of the yardstick, as a share of it."""
    assert row.peer is not None
    return row.ours / row.peer - 1.0


def run_checkpoints(
    workloads: Sequence[str],
    every_s: float,
    turns: int = 5,
    on_row: Callable[[Row], object] = lambda row: None,
) -> list[Row]:
    """Measure steps with and without checkpoints in the background.

    A trainer takes steps on two clusters in turns; on one of them it writes a checkpoint in the
    middle of each turn, as the trainers of a job do.

    Args:
        workloads: Names, as of `gradmesh bench step`.
        every_s: About how many seconds of training lie between two checkpoints.
        turns: How often each side has its turn; a checkpoint each.
        on_row: Called with each row as it is known.

    Returns:
        For each workload the mean step with checkpoints against the one without, and what kept the
        steps waiting against the mean step.
    """
    rows = []
    for workload in workloads:
        with ExitStack() as stack:
            for row in _measure_checkpoints(stack, workload, every_s, turns):
                rows.append(row)
                on_row(row)
    return rows


def _measure_checkpoints(stack: ExitStack, workload: str, every_s: float, turns: int) -> list[Row]:
    settings = {"coordinator.trainers": 1}
    clusters = [
        stack.enter_context(LocalCluster(parameter_servers=2, settings=settings)) for _ in range(2)
    ]
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    with start("step_ours", workload, f"none=1={clusters[0].address}") as probe:
        probe.measure(side="none", rounds=10)
        step_s = sorted(probe.measure(side="none", rounds=9))[4]
    every = max(4, int(every_s / step_s))
    sides = [f"none=1={clusters[0].address}", f"written=1={clusters[1].address}={every}={folder}"]
    trainer = stack.enter_context(start("step_ours", workload, *sides))
    for side in ("none", "written"):
        # A turn begins half-way between two checkpoints, so that one is in its middle.
        trainer.measure(side=side, rounds=every + every // 2)
    trainer.measure(side="written-stall", rounds=0)
    means: dict[str, list[float]] = {"none": [], "written": [], "stall": []}
    for _ in range(turns):
        for side in ("none", "written"):
            seconds = trainer.measure(side=side, rounds=every)
            means[side].append(sum(seconds) / every)
        stalls = trainer.measure(side="written-stall", rounds=0)
        means["stall"].append(sum(stalls) / every)
    return [
        Row.of(f"{workload}-checkpoint", means["written"], means["none"]),
        Row.of(f"{workload}-stall", means["stall"], means["none"]),
    ]


def checkpoint_cost(row: Row) -> float:
    """Return what a row adds to a step, as a share of it."""
    assert row.peer is not None
    return row.ours / row.peer - (1.0 if row.workload.endswith("-checkpoint") else 0.0)


def command(echo: Echo, *, sides: str, workloads: Sequence[str], seconds: float) -> Any:
    """Run `gradmesh bench step`, or durability.

    Args:
        echo: Prints a line.
        sides: `coordination` or `durability`.
        workloads: Names.
        seconds: About how long one workload takes on one side.
    """
    chosen = {"coordination": COORDINATION, "durability": DURABILITY}[sides]
    echo(f"{HEADING}{'cost':>9}")
    return as_json(
        run(
            chosen,
            workloads,
            seconds,
            on_row=lambda row: echo(f"{show_line(row)}{cost(row):>9.1%}"),
        )
    )


def checkpoint_command(echo: Echo, *, workloads: Sequence[str], every_s: float, turns: int) -> Any:
    """Run `gradmesh bench checkpoint`."""
    echo(f"{HEADING}{'cost':>9}")
    return as_json(
        run_checkpoints(
            workloads,
            every_s,
            turns,
            on_row=lambda row: echo(f"{show_line(row)}{checkpoint_cost(row):>9.1%}"),
        )
    )

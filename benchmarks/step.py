"""What a training step costs with and without something: coordination, a log.

Each side is a cluster of real processes with two parameter servers; one trainer process takes steps
on all of them in turns, in small blocks, so that whatever else the machine does hits all alike.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from gradmesh.benchmarks import worker
from gradmesh.benchmarks.report import Row
from gradmesh.launch.local import LocalCluster

WORKLOADS = ("small", "dlrm")


class Side(NamedTuple):
    """One way to train.

    Args:
        durability: Of the servers.
        coordinated: Whether steps are those of a synchronous run; otherwise each context applies
            by itself.
    """

    durability: str
    coordinated: bool = True


DURABILITY = {"off": Side("off"), "os": Side("os"), "fsync": Side("fsync")}
"""Sides of `gradmesh bench durability`; the first is what the others are compared with."""

COORDINATION = {"none": Side("off", coordinated=False), "sync": Side("off")}
"""Sides of `gradmesh bench step`."""


def run(
    sides: Mapping[str, Side],
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
    workload: str, sides: Mapping[str, Side], seconds: float, blocks: int
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
        trainer = stack.enter_context(
            worker.start("gradmesh.benchmarks.step_ours", workload, *addresses)
        )
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

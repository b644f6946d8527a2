"""What periodic checkpoints cost a training step.

Two clusters of real processes, a trainer that takes steps on both in turns; on one of them it
writes a checkpoint in the middle of each turn, in the background, as the trainers of a job do.
"""

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from gradmesh.benchmarks import worker
from gradmesh.benchmarks.report import Row
from gradmesh.launch.local import LocalCluster


def run(
    workloads: Sequence[str],
    every_s: float,
    turns: int = 5,
    on_row: Callable[[Row], object] = lambda row: None,
) -> list[Row]:
    """Measure steps with and without checkpoints.

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
            for row in _measure(stack, workload, every_s, turns):
                rows.append(row)
                on_row(row)
    return rows


def _measure(stack: ExitStack, workload: str, every_s: float, turns: int) -> list[Row]:
    settings = {"coordinator.trainers": 1}
    clusters = [
        stack.enter_context(LocalCluster(parameter_servers=2, settings=settings)) for _ in range(2)
    ]
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    with worker.start(
        "gradmesh.benchmarks.step_ours", workload, f"none=1={clusters[0].address}"
    ) as probe:
        probe.measure(side="none", rounds=10)
        step_s = sorted(probe.measure(side="none", rounds=9))[4]
    every = max(4, int(every_s / step_s))
    sides = [f"none=1={clusters[0].address}", f"written=1={clusters[1].address}={every}={folder}"]
    trainer = stack.enter_context(worker.start("gradmesh.benchmarks.step_ours", workload, *sides))
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


def share(row: Row) -> float:
    """Return what a row adds to a step, as a share of it."""
    assert row.peer is not None
    return row.ours / row.peer - (1.0 if row.workload.endswith("-checkpoint") else 0.0)

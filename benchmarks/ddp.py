"""Training steps under DistributedDataParallel on growing numbers of processes of this machine.

One measurement is forward, loss, backward and step. The first set runs without DDP. Against torch
the processes run their steps with and without DDP in turns: what is compared is the difference,
that is what DDP adds to the local step.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, final

import numpy as np

from gradmesh.benchmarks.ddp_report import Measured, ModelReport, content, heading, line
from gradmesh.benchmarks.processes import RankProcesses, start_ranks
from gradmesh.benchmarks.report import HEADING, BadOption, Echo, Row, as_json, show_line
from gradmesh.protos.version import VERSION

MODELS: Final = ("resnet50", "resnet101", "resnext50_32x4d", "resnext101_32x8d", "mlp")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DdpWorkload:
    """What one process does in an iteration."""

    model: str
    """Which model."""
    batch_size: int
    """Examples."""
    image_size: int
    """Height and width of the images; without meaning for the mlp."""
    width: int
    """Neurons of each of the mlp's ten layers; 1024 makes ten million parameters."""
    bucket_mb: float
    """Cap of the buckets."""
    view: bool
    """Whether gradients lie in the buckets."""


def run(
    work: DdpWorkload,
    worlds: Sequence[int],
    backend: str,
    warmup: int,
    rounds: int,
    on_set: Callable[[ModelReport, Measured, str, float | None], object] = lambda *_: None,
) -> ModelReport:
    """Measure one model without DDP, then with it on each number of processes.

    Args:
        work: What to do.
        worlds: Numbers of processes.
        backend: Backend of the process group.
        warmup: Iterations that are not measured.
        rounds: Iterations that are.
        on_set: Called with each set as it is known, its label, and which share of the
            communication was hidden behind backward.
    """
    report = ModelReport(work.model, work.batch_size)
    for world, wraps, label in [(1, False, "no ddp"), *((n, True, f"1M/{n}P") for n in worlds)]:
        with start_ranks("ddp_ours", backend if world > 1 else "local", world=world) as ranks:
            command = {**asdict(work), "wraps": wraps}
            ranks.measure_all(**command, rounds=warmup)
            found = ranks.measure_all(**command, rounds=rounds)
            hidden = _hidden(ranks.measure_all(**command, rounds=0)) if world > 1 else None
        measured = Measured(tuple(range(world)), tuple(s for seconds in found for s in seconds))
        report.result.append(measured)
        on_set(report, measured, label, hidden)
    return report


def _hidden(found: Sequence[Sequence[float]]) -> float:
    """Return which share of the communication backward hid, at the median.

    Args:
        found: For each rank the time of communication alone, then what was left of it when
            backward ended, for each step. The rank that ended last did not wait for others: its
            remaining time is communication. That of other ranks includes waiting for it.
    """
    alone = float(np.median([seconds[0] for seconds in found]))
    left = [min(ranks) for ranks in zip(*(seconds[1:] for seconds in found), strict=True)]
    return max(0.0, 1 - float(np.median(left)) / alone)


def compare(
    work: DdpWorkload,
    worlds: Sequence[int],
    backend: str,
    warmup: int,
    rounds: int,
    blocks: int = 6,
) -> list[Row]:
    """Return what DDP adds to a step, ours and torch's, for each number of processes.

    Args:
        work: The mlp.
        worlds: Numbers of processes.
        backend: Backend of our process group; torch uses gloo.
        warmup: Steps of each kind that are not measured.
        rounds: Steps of each kind in each block.
        blocks: How often the sides take turns.
    """
    rows = []
    for world in worlds:
        with (
            start_ranks("ddp_ours", backend, world=world) as ours,
            start_ranks("ddp_torch", "gloo", world=world) as theirs,
        ):
            sides = {"ours": ours, "theirs": theirs}
            pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
            for side in sides.values():
                _pairs(side, work, warmup)
            for _ in range(blocks):
                for name, side in sides.items():
                    pairs[name] += _pairs(side, work, rounds)
        name = f"ddp-{work.model}{'10m' if work.width == 1024 else work.width}"
        name += "-view" if work.view else ""
        rows += [
            Row.of(f"{name}-w{world}", *([b - a for a, b in pairs[n]] for n in sides)),
            Row.of(f"{name}-local-w{world}", *([a for a, _ in pairs[n]] for n in sides)),
            Row.of(f"{name}-step-w{world}", *([b for _, b in pairs[n]] for n in sides)),
        ]
    return rows


def _pairs(side: RankProcesses, work: DdpWorkload, rounds: int) -> list[tuple[float, float]]:
    """Return the seconds of a local step and of one with DDP right after it, `rounds` times."""
    found = side.measure_all(**asdict(work), wraps=None, rounds=rounds)
    # A step is over when the last rank is done.
    slowest = [max(ranks) for ranks in zip(*found, strict=True)]
    return list(zip(slowest[::2], slowest[1::2], strict=True))


def command(
    echo: Echo,
    *,
    models: Sequence[str],
    worlds: Sequence[int],
    backend: str,
    bucket_mb: float,
    view: bool,
    batch_size: int | None,
    image_size: int,
    width: int,
    warmup: int,
    rounds: int,
    against: str | None,
) -> Any:
    """Run `gradmesh bench ddp`."""

    def workload(model: str) -> DdpWorkload:
        return DdpWorkload(
            model=model,
            batch_size=batch_size or (64 if model == "mlp" else 2),
            image_size=image_size,
            width=width,
            bucket_mb=bucket_mb,
            view=view,
        )

    if against is not None:
        if set(models) - {"mlp"}:
            raise BadOption("only the mlp is compared with torch; leave --model out")
        compared = [world for world in worlds if world > 1]
        if not compared:
            raise BadOption("one process has no other to average with; use --world 2 or more")
        echo(HEADING)
        rows = compare(workload("mlp"), compared, backend, warmup, rounds)
        for row in rows:
            echo(show_line(row))
        return as_json(rows)
    header = {
        "gradmesh_version": VERSION,
        "cuda_version": None,
        "distributed_backend": backend,
        "bucket_size": bucket_mb,
    }
    for key, value in header.items():
        echo(f"{key}: {value}")
    reports = []
    for model in models or ("mlp", "resnet50"):
        work = workload(model)
        echo(heading(ModelReport(model, work.batch_size)))
        reports.append(
            run(work, worlds, backend, warmup, rounds, lambda *found: echo(line(*found)))
        )
    return content(header, reports)

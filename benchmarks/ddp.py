"""Training steps under DistributedDataParallel on growing numbers of processes of this machine.

One measurement is forward, loss, backward and step. The first set runs without DDP. Against torch
the processes run their steps with and without DDP in turns: what is compared is the difference,
that is what DDP adds to the local step.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, final

import numpy as np

from gradmesh.benchmarks.crowd import Crowd, crowd
from gradmesh.benchmarks.ddp_report import Measured, ModelReport
from gradmesh.benchmarks.report import Row

MODELS: Final = ("resnet50", "resnet101", "resnext50_32x4d", "resnext101_32x8d", "mlp")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
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
    work: Work,
    worlds: Sequence[int],
    backend: str,
    warmup: int,
    rounds: int,
    on_set: Callable[[ModelReport, Measured, str], object] = lambda *_: None,
) -> ModelReport:
    """Measure one model without DDP, then with it on each number of processes.

    Args:
        work: What to do.
        worlds: Numbers of processes.
        backend: How they talk.
        warmup: Iterations that are not measured.
        rounds: Iterations that are.
        on_set: Called with each set as it is known.
    """
    report = ModelReport(work.model, work.batch_size)
    for world, wraps, label in [(1, False, "no ddp"), *((n, True, f"1M/{n}P") for n in worlds)]:
        with crowd("ddp_ours", backend if world > 1 else "local", world) as ranks:
            command = {**asdict(work), "wraps": wraps}
            ranks.measure_all(**command, rounds=warmup)
            found = ranks.measure_all(**command, rounds=rounds)
        measured = Measured(tuple(range(world)), tuple(s for seconds in found for s in seconds))
        report.result.append(measured)
        on_set(report, measured, label)
    return report


def compare(
    work: Work, worlds: Sequence[int], backend: str, rounds: int, blocks: int = 6
) -> list[Row]:
    """Return what DDP adds to a step, ours and torch's, for each number of processes.

    Args:
        work: The mlp.
        worlds: Numbers of processes.
        backend: How ours talk; torch's use gloo.
        rounds: Steps of each kind in each block.
        blocks: How often the sides take turns.
    """
    rows = []
    for world in worlds:
        with (
            crowd("ddp_ours", backend, world) as ours,
            crowd("ddp_torch", "gloo", world) as theirs,
        ):
            sides = {"ours": ours, "theirs": theirs}
            local: dict[str, list[float]] = {name: [] for name in sides}
            wrapped: dict[str, list[float]] = {name: [] for name in sides}
            for block in range(blocks + 1):
                for name, side in sides.items():
                    alone = _steps(side, work, False, rounds)
                    shared = _steps(side, work, True, rounds)
                    if block:
                        local[name] += alone
                        wrapped[name] += shared
        name = f"ddp-{work.model}{'10m' if work.width == 1024 else work.width}"
        kind = "-view" if work.view else ""
        rows += [
            Row.of(f"{name}{kind}-w{world}", *(_added(local[n], wrapped[n]) for n in sides)),
            Row.of(f"{name}{kind}-local-w{world}", local["ours"], local["theirs"]),
            Row.of(f"{name}{kind}-step-w{world}", wrapped["ours"], wrapped["theirs"]),
        ]
    return rows


def _steps(side: Crowd, work: Work, wraps: bool, rounds: int) -> list[float]:
    found: Any = side.measure_all(**asdict(work), wraps=wraps, rounds=rounds)
    # A step is over when the last rank is done.
    return [float(max(ranks)) for ranks in zip(*found, strict=True)]


def _added(local: Sequence[float], wrapped: Sequence[float]) -> list[float]:
    """Return what each wrapped step took beyond the median local one; at least a microsecond."""
    middle = float(np.median(local))
    return [max(seconds - middle, 1e-6) for seconds in wrapped]

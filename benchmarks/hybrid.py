"""The hybrid step, tables on servers and dense layers under DDP, against torch RPC and DDP.

Both sides run the same batches through the same layers, in processes of one thread each. They take
turns in small blocks, so that other load on the machine hits both; the peer's processes, which
spin when idle, are stopped while ours work.
"""

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from gradmesh.benchmarks.hybrid_shape import Shape, seed_shape, shapes
from gradmesh.benchmarks.processes import MeasuringProcess, start
from gradmesh.benchmarks.report import BadOption, Echo, as_json
from gradmesh.launch.local import LocalCluster

PARTS: Final = ("lookup", "forward", "backward", "step", "total")
TOTAL, SAMPLES, BYTES, MEMORY = 4, 5, 6, 7
"""Columns of a step's figures after those of its four parts: seconds, samples, bytes moved, and the
most memory that the trainer ever had, in bytes; the peer does not count the last two."""
_COLUMNS: Final = 8


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class HybridRow:
    """One workload.

    Args:
        workload: Its name.
        ours: Median seconds of a step of ours.
        peer: Median seconds of the peer's; None when it was not asked.
        ratio: How many times faster ours is.
        ours_parts: Median seconds of lookup, forward, backward and step.
        peer_parts: Of the peer.
        ours_samples_per_s: Of all trainers together.
        peer_samples_per_s: Of the peer.
        steps: Steps measured of each trainer.
    """

    workload: str
    ours: float
    peer: float | None
    ratio: float | None
    ours_parts: dict[str, float]
    peer_parts: dict[str, float] | None
    ours_samples_per_s: float
    peer_samples_per_s: float | None
    steps: int

    def as_dict(self) -> dict[str, Any]:
        """Return the row as JSON holds it."""
        return asdict(self)


@final
class HybridSide:
    """The processes of one side.

    Args:
        trainers: The processes that take the steps.
        spinning: Processes that spin when idle; suspended while the other side works.
    """

    def __init__(
        self,
        trainers: Sequence[MeasuringProcess],
        spinning: Sequence[MeasuringProcess] = (),
    ) -> None:
        self._trainers = trainers
        self._spinning = spinning
        self.times: list[NDArray[np.float64]] = []

    def run(self, rounds: int) -> NDArray[np.float64]:
        """Let all trainers take steps; return [trainers, rounds, columns]."""
        for process in self._spinning:
            process.resume()
        for trainer in self._trainers:
            trainer.ask(rounds=rounds)
        found = np.array([trainer.answer() for trainer in self._trainers])
        for process in self._spinning:
            process.pause()
        return found.reshape(len(self._trainers), rounds, _COLUMNS)


def run(
    chosen: Sequence[Shape],
    against_torch: bool,
    seconds: float,
    *,
    lane: str = "auto",
    blocks: int = 5,
    on_row: Callable[[HybridRow], object] = lambda row: None,
) -> list[HybridRow]:
    """Measure workloads.

    Args:
        chosen: Which.
        against_torch: Whether the peer takes its turns, too.
        seconds: About how long one workload may take on one side.
        lane: Of our hot calls.
        blocks: How often the sides take turns.
        on_row: Called with each row as it is known.
    """
    rows = []
    for shape in chosen:
        with ExitStack() as stack:
            sides = [stack.enter_context(our_side(shape, lane))]
            if against_torch:
                sides.append(stack.enter_context(peer_side(shape)))
            measure(sides, seconds, blocks)
            rows.append(_row(shape, sides))
            on_row(rows[-1])
    return rows


def measure(sides: Sequence[HybridSide], seconds: float, blocks: int) -> None:
    """Let sides take turns until each has had its time; their times are collected."""
    rounds = []
    for side in sides:
        side.run(5)
        # The slow first step must not determine the number of rounds.
        warm = float(np.median(side.run(5)[:, :, TOTAL]))
        rounds.append(max(3, min(500, int(seconds / blocks / warm))))
    for _ in range(blocks):
        for side, count in zip(sides, rounds, strict=True):
            side.times.append(side.run(count))


@contextmanager
def our_side(shape: Shape, lane: str) -> Iterator[HybridSide]:
    """Start our servers and trainers; they end with the block."""
    with ExitStack() as stack:
        settings = {"coordinator.trainers": shape.trainers, "parameter_server.durability": "off"}
        # One thread each, as all processes of both sides have.
        cluster = stack.enter_context(
            LocalCluster(parameter_servers=shape.servers, settings=settings)
        )
        plain = json.dumps(shape.as_dict())
        trainers = [
            stack.enter_context(
                start("hybrid_ours", plain, cluster.address, str(n), lane, waits=False)
            )
            for n in range(shape.trainers)
        ]
        for trainer in trainers:
            trainer.wait_ready()
        yield HybridSide(trainers)


@contextmanager
def peer_side(shape: Shape) -> Iterator[HybridSide]:
    """Start the peer's servers and trainers, suspended when idle; they end with the block."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gradmesh-bench-"))
        plain = json.dumps(shape.as_dict())
        counts = {"server": shape.servers, "trainer": shape.trainers}
        started: dict[str, list[MeasuringProcess]] = {
            role: [
                stack.enter_context(start("hybrid_torch", plain, folder, role, str(n), waits=False))
                for n in range(count)
            ]
            for role, count in counts.items()
        }
        for process in (*started["server"], *started["trainer"]):
            process.wait_ready()
        spinning = [*started["server"], *started["trainer"]]
        for process in spinning:
            process.pause()
        yield HybridSide(started["trainer"], spinning)


def _row(shape: Shape, sides: Sequence[HybridSide]) -> HybridRow:
    ours, *peers = [np.concatenate(side.times, axis=1) for side in sides]
    peer = peers[0] if peers else None
    ours_parts = parts_of(ours)
    peer_parts = None if peer is None else parts_of(peer)
    return HybridRow(
        workload=shape.name,
        ours=ours_parts["total"],
        peer=None if peer_parts is None else peer_parts["total"],
        ratio=None if peer_parts is None else peer_parts["total"] / ours_parts["total"],
        ours_parts=ours_parts,
        peer_parts=peer_parts,
        ours_samples_per_s=rate(ours),
        peer_samples_per_s=None if peer is None else rate(peer),
        steps=ours.shape[1],
    )


def parts_of(times: NDArray[np.float64]) -> dict[str, float]:
    """Return the median seconds of each part of a step."""
    middle = np.median(times[:, :, : len(PARTS)], axis=(0, 1))
    return dict(zip(PARTS, middle.tolist(), strict=True))


def rate(times: NDArray[np.float64]) -> float:
    """Return the samples of all trainers in a second: each has its own, over its own time."""
    return float((times[:, :, SAMPLES].sum(axis=1) / times[:, :, TOTAL].sum(axis=1)).sum())


def command(
    echo: Echo,
    *,
    against: str | None,
    workloads: Sequence[str],
    trainers: int | None,
    parameter_servers: int | None,
    embeddings: int | None,
    dim: int | None,
    epochs: int,
    warmup_cycles: int,
    rows: int,
    prefetch: int,
    lane: str,
    seconds: float,
) -> Any:
    """Run `gradmesh bench hybrid`; with a size, the benchmark of torch's examples."""
    if any(value is not None for value in (trainers, parameter_servers, embeddings, dim)):
        from gradmesh.benchmarks import hybrid_epochs

        if workloads:
            raise BadOption("--workload has sizes of its own; leave the others out")
        sizes = (trainers or 8, parameter_servers or 8, embeddings or 300, dim or 64)
        shape = replace(seed_shape("seed", *sizes), prefetch=prefetch)
        found = hybrid_epochs.run(
            shape, epochs, warmup_cycles, against_torch=against is not None, lane=lane
        )
        echo(hybrid_epochs.table(found, shape))
        return hybrid_epochs.as_json(found, shape)
    known = shapes(rows)
    chosen = [replace(known[name], prefetch=prefetch) for name in workloads or known]
    columns = "".join(f"{name:>9}" for name in PARTS)
    echo(f"{'workload':<18}{'side':<7}{columns}{'samples/s':>12}{'ratio':>8}   (ms, p50)")
    return as_json(
        run(
            chosen,
            against is not None,
            seconds,
            lane=lane,
            on_row=lambda row: echo(_lines(row)),
        )
    )


def _lines(row: HybridRow) -> str:
    ratio = "" if row.ratio is None else f"{row.ratio:>8.2f}"
    lines = [_line(row.workload, "ours", row.ours_parts, row.ours_samples_per_s) + ratio]
    if row.peer_parts is not None and row.peer_samples_per_s is not None:
        lines.append(_line("", "torch", row.peer_parts, row.peer_samples_per_s))
    return "\n".join(lines)


def _line(name: str, side: str, parts: dict[str, float], rate: float) -> str:
    shown = "".join(f"{value * 1e3:>9.2f}" for value in parts.values())
    return f"{name:<18}{side:<7}{shown}{rate:>12,.0f}"

"""The hybrid step, tables on servers and dense layers under DDP, against torch RPC and DDP.

Both sides run the same batches through the same layers, in processes of one thread each. They take
turns in small blocks, so that whatever else the machine does hits both; the peer's processes, which
spin when idle, are stopped while ours work.
"""

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from gradmesh.benchmarks import worker
from gradmesh.benchmarks.hybrid_shape import Shape
from gradmesh.launch.local import LocalCluster

PARTS: Final = ("lookup", "forward", "backward", "step", "total")
TOTAL, SAMPLES, BYTES, MEMORY = 4, 5, 6, 7
"""Columns of a step's figures after those of its four parts: seconds, samples, bytes moved, and the
most memory that the trainer ever had, in bytes; the peer does not count the last two."""
_COLUMNS: Final = 8
_HOME: Final = "gradmesh.benchmarks"


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
class Side:
    """The processes of one side.

    Args:
        trainers: They take the steps.
        spinning: Processes that work also when they have nothing to do, and are stopped then.
    """

    def __init__(
        self, trainers: Sequence[worker.Worker], spinning: Sequence[worker.Worker] = ()
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


def measure(sides: Sequence[Side], seconds: float, blocks: int) -> None:
    """Let sides take turns until each has had its time; their times are collected."""
    rounds = []
    for side in sides:
        side.run(5)
        # Also the slowest first step must not decide on how many there are.
        warm = float(np.median(side.run(5)[:, :, TOTAL]))
        rounds.append(max(3, min(500, int(seconds / blocks / warm))))
    for _ in range(blocks):
        for side, count in zip(sides, rounds, strict=True):
            side.times.append(side.run(count))


def write_json(rows: Sequence[HybridRow], file: Path) -> None:
    """Write all rows as one JSON array."""
    file.write_text(json.dumps([row.as_dict() for row in rows], indent=1) + "\n", encoding="utf-8")


@contextmanager
def our_side(shape: Shape, lane: str) -> Iterator[Side]:
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
                worker.start(
                    f"{_HOME}.hybrid_ours", plain, cluster.address, str(n), lane, waits=False
                )
            )
            for n in range(shape.trainers)
        ]
        for trainer in trainers:
            trainer.wait_ready()
        yield Side(trainers)


@contextmanager
def peer_side(shape: Shape) -> Iterator[Side]:
    """Start the peer's servers and trainers; they end with the block, and stand still between."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gradmesh-bench-"))
        plain = json.dumps(shape.as_dict())
        counts = {"server": shape.servers, "trainer": shape.trainers}
        started: dict[str, list[worker.Worker]] = {
            role: [
                stack.enter_context(
                    worker.start(f"{_HOME}.hybrid_torch", plain, folder, role, str(n), waits=False)
                )
                for n in range(count)
            ]
            for role, count in counts.items()
        }
        for process in (*started["server"], *started["trainer"]):
            process.wait_ready()
        everyone = [*started["server"], *started["trainer"]]
        for process in everyone:
            process.pause()
        yield Side(started["trainer"], everyone)


def _row(shape: Shape, sides: Sequence[Side]) -> HybridRow:
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

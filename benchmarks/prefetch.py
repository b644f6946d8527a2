"""Share of a lookup that prefetching hides behind the dense layers: with and without, in turns.

One trainer and one server, so that on two cores each has its own: where all cores compute all the
time, there is nothing to hide behind.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, final

import numpy as np

from gradmesh.benchmarks.hybrid import measure, our_side, parts_of
from gradmesh.benchmarks.hybrid_shape import shapes
from gradmesh.benchmarks.report import Echo, as_json

LANES: Final = ("shm", "tcp", "stream")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PrefetchRow:
    """One lane.

    Args:
        workload: Its name.
        ours: Median seconds that a step spends on its rows with prefetching: requests, waiting,
            refresh and gathering.
        peer: The same without prefetching.
        hidden: The share of the latter that is hidden.
        ours_parts: Median seconds of the parts of a step with prefetching.
        peer_parts: Without.
    """

    workload: str
    ours: float
    peer: float
    hidden: float
    ours_parts: dict[str, float]
    peer_parts: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        """Return the row as JSON holds it."""
        return asdict(self)


def run(
    lanes: Sequence[str],
    batch: int,
    rows: int,
    seconds: float,
    on_row: Callable[[PrefetchRow], object],
) -> list[PrefetchRow]:
    """Measure lanes.

    Args:
        lanes: Which.
        batch: Samples of a batch; the dense layers are those of the realistic workloads.
        rows: Of each of 26 tables.
        seconds: About how long each side takes.
        on_row: Called with each row as it is known.
    """
    found = []
    for lane in lanes:
        shape = replace(shapes(rows)["realistic-b2048"], trainers=1, batch=batch)
        with ExitStack() as stack:
            sides = [
                stack.enter_context(our_side(replace(shape, prefetch=depth), lane))
                for depth in (1, 0)
            ]
            measure(sides, seconds, blocks=5)
            ahead, plain = (parts_of(np.concatenate(side.times, axis=1)) for side in sides)
        found.append(
            PrefetchRow(
                workload=f"prefetch-{lane}",
                ours=ahead["lookup"],
                peer=plain["lookup"],
                hidden=1 - ahead["lookup"] / plain["lookup"],
                ours_parts=ahead,
                peer_parts=plain,
            )
        )
        on_row(found[-1])
    return found


def command(echo: Echo, *, lanes: Sequence[str], batch: int, rows: int, seconds: float) -> Any:
    """Run `gradmesh bench prefetch`."""
    echo(
        f"{'workload':<16}{'rows, ms':>10}{'ahead, ms':>11}{'hidden':>8}{'step, ms':>10}"
        f"{'ahead, ms':>11}"
    )

    def show(row: PrefetchRow) -> None:
        echo(
            f"{row.workload:<16}{row.peer * 1e3:>10.2f}{row.ours * 1e3:>11.2f}{row.hidden:>8.0%}"
            f"{row.peer_parts['total'] * 1e3:>10.1f}{row.ours_parts['total'] * 1e3:>11.1f}"
        )

    return as_json(run(lanes, batch, rows, seconds, show))

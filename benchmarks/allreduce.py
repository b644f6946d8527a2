"""All-reduce of float32 between processes of this machine, against torch with gloo.

The two sides take turns in small blocks, so that whatever else the machine does hits both; the
processes of one side are stopped while the other works.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final

from gradmesh.benchmarks.crowd import Crowd, crowd
from gradmesh.benchmarks.report import Row

BACKENDS: Final = ("shm", "tcp")
SIZES: Final = {"4KiB": 4 << 10, "1MiB": 1 << 20, "25MiB": 25 << 20}


def run(
    backends: Sequence[str],
    worlds: Sequence[int],
    sizes: Sequence[str],
    against_torch: bool,
    seconds: float,
    blocks: int = 5,
    on_row: Callable[[Row], object] = lambda row: None,
) -> list[Row]:
    """Measure every size on every backend and number of processes.

    Args:
        backends: Which of ours to measure.
        worlds: Numbers of processes.
        sizes: Names of SIZES.
        against_torch: Whether the peer takes its turns, too.
        seconds: About how long one row may take on one side.
        blocks: How often the sides take turns.
        on_row: Called with each row as it is known.
    """
    rows = []
    for world in worlds:
        with ExitStack() as stack:
            sides = {b: stack.enter_context(crowd("allreduce_ours", b, world)) for b in backends}
            if against_torch:
                sides["torch"] = stack.enter_context(crowd("allreduce_torch", "gloo", world))
            for size in sizes:
                for row in _measure(size, world, sides, seconds, blocks):
                    rows.append(row)
                    on_row(row)
    return rows


def _measure(
    size: str, world: int, sides: dict[str, Crowd], seconds: float, blocks: int
) -> list[Row]:
    count = SIZES[size] // 4
    rounds: dict[str, int] = {}
    for name, side in sides.items():
        warm = side.measure(count=count, rounds=6)
        warm = side.measure(count=count, rounds=max(3, min(30, int(0.1 / min(warm)))))
        rounds[name] = max(3, min(2000, int(seconds / blocks / sorted(warm)[len(warm) // 2])))
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(blocks):
        for name, side in sides.items():
            times[name] += side.measure(count=count, rounds=rounds[name])
    theirs = times.pop("torch", [])
    return [Row.of(f"{name}-{size}-w{world}", ours, theirs) for name, ours in times.items()]

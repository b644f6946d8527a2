"""All-reduce of float32 between processes of this machine, against torch with gloo.

The two sides take turns in small blocks, so that other load on the machine hits both; the
processes of one side are stopped while the other works. This module is also what each rank runs;
its arguments are backend, folder to meet in, rank and number of processes.
"""

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final, get_args

from gradmesh.benchmarks.processes import RankProcesses, serve, start_ranks, take_turns, timed
from gradmesh.benchmarks.report import HEADING, Echo, Row, as_json, show_line

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
            sides = {
                name: stack.enter_context(start_ranks("allreduce", name, world=world))
                for name in backends
            }
            if against_torch:
                sides["torch"] = stack.enter_context(start_ranks("allreduce", "gloo", world=world))
            for size in sizes:
                for row in _measure(size, world, sides, seconds, blocks):
                    rows.append(row)
                    on_row(row)
    return rows


def _measure(
    size: str, world: int, sides: dict[str, RankProcesses], seconds: float, blocks: int
) -> list[Row]:
    count = SIZES[size] // 4

    def measure(side: RankProcesses, rounds: int) -> list[float]:
        return side.measure(count=count, rounds=rounds)

    turns = {name: partial(measure, side) for name, side in sides.items()}
    times = take_turns(turns, seconds, blocks, most=2000)
    theirs = times.pop("torch", [])
    return [Row.of(f"{name}-{size}-w{world}", ours, theirs) for name, ours in times.items()]


def command(
    echo: Echo,
    *,
    against: str | None,
    backends: Sequence[str],
    worlds: Sequence[int],
    sizes: Sequence[str],
    seconds: float,
) -> Any:
    """Run `gradmesh bench allreduce`."""
    echo(HEADING)
    return as_json(
        run(
            backends,
            worlds,
            sizes,
            against is not None,
            seconds,
            on_row=lambda row: echo(show_line(row)),
        )
    )


def _serve_ours(backend: str, folder: str, rank: int, world: int) -> None:
    """Join our process group and serve the parent."""
    import numpy as np

    from gradmesh.trainer.process_group import Backend, FileStore, connect

    known: dict[str, Backend] = {name: name for name in get_args(Backend)}
    group = connect(
        FileStore(Path(folder)),
        backend=known[backend],
        generation=1,
        rank=rank,
        world_size=world,
        timeout_s=60,
    )

    def measure(count: int, rounds: int) -> list[float]:
        array = group.empty(count, np.float32)
        array[...] = 0
        return timed(lambda _: group.all_reduce(array).wait(), rounds)

    with group:
        serve(measure)


def _serve_torch(folder: str, rank: int, world: int) -> None:
    """Join a process group of torch.distributed with gloo and serve the parent."""
    import torch
    import torch.distributed as dist

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world
    )

    def measure(count: int, rounds: int) -> list[float]:
        array = torch.zeros(count)
        return timed(lambda _: dist.all_reduce(array), rounds)

    serve(measure)
    # Destroying the group would wait for ranks that have ended already.
    os._exit(0)


def main(backend: str, folder: str, rank: str, world: str) -> None:
    """Run one rank."""
    if backend == "gloo":
        _serve_torch(folder, int(rank), int(world))
    else:
        _serve_ours(backend, folder, int(rank), int(world))


if __name__ == "__main__":
    main(*sys.argv[1:])

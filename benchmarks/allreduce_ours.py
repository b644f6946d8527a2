"""One rank of our side of the all-reduce benchmark.

Arguments: backend, folder of the store, rank, number of processes.
"""

import sys
from pathlib import Path
from typing import get_args

import numpy as np

from gradmesh.benchmarks.worker import serve, timed
from gradmesh.trainer.process_group import Backend, FileStore, connect


def main() -> None:
    """Join the group and serve the parent."""
    backend, folder, rank, world = sys.argv[1:]
    known: dict[str, Backend] = {name: name for name in get_args(Backend)}
    group = connect(
        FileStore(Path(folder)),
        backend=known[backend],
        generation=1,
        rank=int(rank),
        world_size=int(world),
        timeout_s=60,
    )

    def measure(count: int, rounds: int) -> list[float]:
        array = group.empty(count, np.float32)
        array[...] = 0
        return timed(lambda _: group.all_reduce(array).wait(), rounds)

    with group:
        serve(measure)


if __name__ == "__main__":
    main()

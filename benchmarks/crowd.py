"""The processes of one side of a benchmark, one for each rank."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, final

from gradmesh.benchmarks import worker

_HOME = "gradmesh.benchmarks"


@final
class Crowd:
    """Workers that get every command together.

    Args:
        workers: One for each rank, in rank order.
    """

    def __init__(self, workers: Sequence[worker.Worker]) -> None:
        self._workers = workers

    def measure(self, **command: Any) -> list[float]:
        """Give all ranks one command; return the seconds of rank 0."""
        return self.measure_all(**command)[0]

    def measure_all(self, **command: Any) -> list[list[float]]:
        """Give all ranks one command; return the seconds of each."""
        for rank in self._workers:
            rank.ask(**command)
        return [rank.answer() for rank in self._workers]


@contextmanager
def crowd(module: str, backend: str, world: int) -> Iterator[Crowd]:
    """Run a module of this package as `world` processes, until the block ends.

    Args:
        module: Its name; it takes backend, folder to meet in, rank and world as arguments.
        backend: How the ranks talk.
        world: How many there are.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gradmesh-bench-"))
        workers = [
            stack.enter_context(
                worker.start(
                    f"{_HOME}.{module}",
                    *map(str, (backend, folder, rank, world)),
                    pauses=True,
                    waits=False,
                )
            )
            for rank in range(world)
        ]
        for rank in workers:
            rank.wait_ready()
        yield Crowd(workers)

"""Worlds of ranks as threads of this process, over sockets of the loopback."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from gradmesh.engine.autograd import Tensor
from gradmesh.trainer.process_group import LocalProcessGroup, ProcessGroup, connect


class MemoryStore:
    """Keys and values shared by the threads of one process."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: bytes) -> None:
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key: str, timeout_s: float) -> bytes:
        with self._changed:
            if not self._changed.wait_for(lambda: key in self._values, timeout_s):
                raise TimeoutError(key)
            return self._values[key]


class World:
    """Ranks that run a job at the same time, each on a thread of its own."""

    def __init__(self, size: int, timeout_s: float = 30.0, backend: str = "tcp") -> None:
        self.size = size
        self._backend = backend
        self._pool = ThreadPoolExecutor(size, thread_name_prefix="rank")
        self._timeout_s = timeout_s
        self._meetings = 0
        self.groups = self.meet()

    def meet(self) -> list[ProcessGroup]:
        """Return new groups, by rank."""
        if self.size == 1:
            return [LocalProcessGroup()]
        store = MemoryStore()
        self._meetings += 1

        def join(rank: int) -> ProcessGroup:
            return connect(
                store,
                backend=self._backend,
                generation=self._meetings,
                rank=rank,
                world_size=self.size,
                timeout_s=self._timeout_s,
            )

        return list(self._pool.map(join, range(self.size), timeout=120))

    def run(self, job: Callable[[ProcessGroup], Any]) -> list[Any]:
        """Return the result of the job on each rank, or raise the first error."""
        futures = [self._pool.submit(job, group) for group in self.groups]
        return [future.result(timeout=120) for future in futures]

    def errors(self, job: Callable[[ProcessGroup], Any]) -> list[BaseException | None]:
        """Return each rank's error."""
        futures = [self._pool.submit(job, group) for group in self.groups]
        return [future.exception(timeout=120) for future in futures]

    def close(self) -> None:
        for group in self.groups:
            group.close()
        self._pool.shutdown()


@pytest.fixture(scope="session")
def make_world() -> type[World]:
    """Give the class of worlds, for fixtures that keep one over several tests."""
    return World


@pytest.fixture
def world() -> Iterator[Callable[..., World]]:
    """Make worlds: world(size) -> World."""
    made: list[World] = []

    def make(size: int = 2, timeout_s: float = 30.0, backend: str = "tcp") -> World:
        made.append(World(size, timeout_s, backend))
        return made[-1]

    yield make
    for one in made:
        one.close()


def draw(rank: int, step: int, *shape: int) -> Tensor:
    """Return numbers that follow from rank and step."""
    rng = np.random.default_rng([rank, step])
    return Tensor(rng.standard_normal(shape).astype(np.float32))


@pytest.fixture
def inputs() -> Callable[..., Tensor]:
    """Give inputs(rank, step, *shape)."""
    return draw

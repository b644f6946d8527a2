"""Groups of ranks as threads of this process, and the store they meet at."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from gradmesh.trainer.process_group import LocalProcessGroup, ProcessGroup, TcpProcessGroup

WORLDS = [("local", 1), ("tcp", 1), ("tcp", 2), ("tcp", 3)]
CROWDS = [world for world in WORLDS if world[1] > 1]


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


class Ranks:
    """The groups of all ranks of one world, and a thread for each."""

    def __init__(self, groups: list[ProcessGroup], pool: ThreadPoolExecutor) -> None:
        self.groups = groups
        self._pool = pool

    @property
    def size(self) -> int:
        return len(self.groups)

    def run(self, job: Callable[[ProcessGroup], Any]) -> list[Any]:
        """Run `job` on every rank at once; return the results, or raise the first error."""
        futures = [self._pool.submit(job, group) for group in self.groups]
        return [future.result(timeout=30) for future in futures]

    def errors(self, job: Callable[[ProcessGroup], Any]) -> list[Exception | None]:
        """Run `job` on every rank at once; return each rank's error."""
        futures = [self._pool.submit(job, group) for group in self.groups]
        return [future.exception(timeout=30) for future in futures]


@pytest.fixture
def meet() -> Iterator[Callable[..., Ranks]]:
    """Build worlds: meet(backend, size, timeout_s) -> Ranks."""
    opened: list[Ranks] = []
    pools: list[ThreadPoolExecutor] = []

    def build(backend: str, size: int, timeout_s: float = 20.0) -> Ranks:
        pool = ThreadPoolExecutor(size, thread_name_prefix="rank")
        pools.append(pool)
        shared = MemoryStore()

        def connect(rank: int) -> ProcessGroup:
            if backend == "local":
                return LocalProcessGroup()
            return TcpProcessGroup.connect(
                shared, generation=1, rank=rank, world_size=size, timeout_s=timeout_s
            )

        ranks = Ranks(list(pool.map(connect, range(size), timeout=30)), pool)
        opened.append(ranks)
        return ranks

    yield build
    for ranks in opened:
        for group in ranks.groups:
            group.close()
    for pool in pools:
        pool.shutdown()
    left = [thread.name for thread in threading.enumerate() if "process-group" in thread.name]
    assert not left


@pytest.fixture(params=WORLDS, ids=lambda world: f"{world[0]}-w{world[1]}")
def ranks(request: pytest.FixtureRequest, meet: Callable[..., Ranks]) -> Ranks:
    """A world of every backend and size."""
    return meet(*request.param)


@pytest.fixture(params=CROWDS, ids=lambda world: f"{world[0]}-w{world[1]}")
def crowd(request: pytest.FixtureRequest, meet: Callable[..., Ranks]) -> Ranks:
    """A world of several ranks."""
    return meet(*request.param)

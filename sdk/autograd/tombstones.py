"""Tombstones of released contexts, so that late messages cannot recreate them."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar, final

from gradmesh.protos.limits import check_name

V = TypeVar("V")

_TOMBSTONES = 4096
MAX_WORKERS = 4096
"""Maximum number of workers tracked: short-lived clients may use a new name each time."""


@final
class Tombstones:
    """Hold the released contexts of one worker, in bounded memory.

    Counters above a floor are kept one by one; every context at or below the floor was released.
    """

    def __init__(self) -> None:
        self._incarnation = 0
        self._floor = 0
        self._counters: set[int] = set()

    def add(self, incarnation: int, counter: int) -> None:
        """Record that a context was released."""
        if incarnation > self._incarnation:
            self._incarnation, self._floor, self._counters = incarnation, 0, set()
        if incarnation < self._incarnation or counter <= self._floor:
            return
        self._counters.add(counter)
        if len(self._counters) > _TOMBSTONES:
            self._floor = sorted(self._counters)[_TOMBSTONES // 2]
            self._counters = {c for c in self._counters if c > self._floor}

    def dump(self) -> tuple[int, int, list[int]]:
        """Return incarnation, floor and single counters, for `load`."""
        return self._incarnation, self._floor, sorted(self._counters)

    def load(self, incarnation: int, floor: int, counters: Sequence[int]) -> None:
        """Restore what `dump` returned."""
        self._incarnation, self._floor, self._counters = incarnation, floor, set(counters)

    def has(self, incarnation: int, counter: int) -> bool:
        """Return whether a context was released."""
        if incarnation != self._incarnation:
            return incarnation < self._incarnation
        return counter <= self._floor or counter in self._counters


@final
class WorkerLru(Generic[V]):
    """Map workers to their state; the least recently used worker is dropped first.

    Args:
        make: Makes the state of a new worker.
        max_workers: How many are tracked.
    """

    def __init__(self, make: Callable[[], V], max_workers: int = MAX_WORKERS) -> None:
        self._make = make
        self._max_workers = max_workers
        self._by_worker: OrderedDict[str, V] = OrderedDict()

    def get(self, worker: str) -> V | None:
        """Return the state of a worker, if there is one."""
        return self._by_worker.get(worker)

    def touch(self, worker: str) -> V:
        """Return the state of a worker, made if needed, and mark it as used last.

        Raises:
            InvalidRequest: The name of a new worker is not valid.
        """
        if worker not in self._by_worker:
            self._by_worker[check_name("worker", worker)] = self._make()
            if len(self._by_worker) > self._max_workers:
                self._by_worker.popitem(last=False)
        self._by_worker.move_to_end(worker)
        return self._by_worker[worker]

    def items(self) -> list[tuple[str, V]]:
        """Return all workers and their states, the one used last at the end."""
        return list(self._by_worker.items())

    def __len__(self) -> int:
        return len(self._by_worker)

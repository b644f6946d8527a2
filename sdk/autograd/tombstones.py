"""What is left of contexts that are over, so that late messages cannot bring them back."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar, final

V = TypeVar("V")

_TOMBSTONES = 4096
MAX_WORKERS = 4096
"""Workers remembered; short-lived clients come and go under ever new names."""


@final
class Tombstones:
    """The contexts of one worker that are over, in bounded memory.

    Kept one by one down to a floor; everything at or below the floor is over.
    """

    def __init__(self) -> None:
        self._incarnation = 0
        self._floor = 0
        self._counters: set[int] = set()

    def bury(self, incarnation: int, counter: int) -> None:
        """Remember that a context is over."""
        if incarnation > self._incarnation:
            self._incarnation, self._floor, self._counters = incarnation, 0, set()
        if incarnation < self._incarnation or counter <= self._floor:
            return
        self._counters.add(counter)
        if len(self._counters) > _TOMBSTONES:
            self._floor = sorted(self._counters)[_TOMBSTONES // 2]
            self._counters = {c for c in self._counters if c > self._floor}

    def marks(self) -> tuple[int, int, list[int]]:
        """Return incarnation, floor and single counters, for `load`."""
        return self._incarnation, self._floor, sorted(self._counters)

    def load(self, incarnation: int, floor: int, counters: Sequence[int]) -> None:
        """Remember what `marks` returned."""
        self._incarnation, self._floor, self._counters = incarnation, floor, set(counters)

    def has(self, incarnation: int, counter: int) -> bool:
        """Tell whether a context is over."""
        if incarnation != self._incarnation:
            return incarnation < self._incarnation
        return counter <= self._floor or counter in self._counters


@final
class WorkerLru(Generic[V]):
    """What is remembered of each worker; the one silent for longest is forgotten first.

    Args:
        make: Makes the memory of a worker that is new.
        max_workers: How many are remembered.
    """

    def __init__(self, make: Callable[[], V], max_workers: int = MAX_WORKERS) -> None:
        self._make = make
        self._max_workers = max_workers
        self._by_worker: OrderedDict[str, V] = OrderedDict()

    def get(self, worker: str) -> V | None:
        """Return what is remembered of a worker."""
        return self._by_worker.get(worker)

    def touch(self, worker: str) -> V:
        """Return what is remembered of a worker, made if need be, as the newest."""
        if worker not in self._by_worker:
            self._by_worker[worker] = self._make()
            if len(self._by_worker) > self._max_workers:
                self._by_worker.popitem(last=False)
        self._by_worker.move_to_end(worker)
        return self._by_worker[worker]

    def items(self) -> list[tuple[str, V]]:
        """Return all workers and what is remembered of them, the newest last."""
        return list(self._by_worker.items())

    def __len__(self) -> int:
        return len(self._by_worker)

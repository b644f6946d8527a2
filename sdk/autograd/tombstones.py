"""Tombstones of released contexts, so that late messages cannot recreate them."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar, final

from gradmesh.protos import limits
from gradmesh.protos.limits import check_name

V = TypeVar("V")

_TOMBSTONES = 4096
# Each worker keeps this number at least, however many workers there are.
_LEAST = 64


@final
class Tombstones:
    """Hold the released contexts of one worker, in bounded memory.

    Counters above a floor are kept one by one; every context at or below the floor was released.
    """

    def __init__(self) -> None:
        self._incarnation = 0
        self._floor = 0
        self._counters: set[int] = set()

    def add(self, incarnation: int, counter: int, most: int | None = None) -> None:
        """Record that a context was released; counters beyond `most` raise the floor."""
        if incarnation > self._incarnation:
            self._incarnation, self._floor, self._counters = incarnation, 0, set()
        if incarnation < self._incarnation or counter <= self._floor:
            return
        most = most or _TOMBSTONES
        self._counters.add(counter)
        if len(self._counters) > most:
            self._floor = sorted(self._counters)[-most // 2 - 1]
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

    def __init__(self, make: Callable[[], V], max_workers: int = limits.DEDUPE_WORKERS) -> None:
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

    def share(self, most: int) -> int:
        """Return how many numbers each worker may keep, so that all together are bounded.

        Args:
            most: Of a worker when there are few.
        """
        share = limits.DEDUPE_NUMBERS // max(1, len(self._by_worker))
        return min(most, max(_LEAST, share))

    def items(self) -> list[tuple[str, V]]:
        """Return all workers and their states, the one used last at the end."""
        return list(self._by_worker.items())

    def __len__(self) -> int:
        return len(self._by_worker)


@final
class ContextTombstones:
    """Hold the released contexts of all workers, in bounded memory; the owner's lock guards it."""

    def __init__(self) -> None:
        self._workers = WorkerLru(Tombstones)

    def add(self, worker: str, incarnation: int, counter: int) -> None:
        """Record that a context was released.

        Raises:
            InvalidRequest: The name of a new worker is not valid.
        """
        found = self._workers.touch(worker)
        found.add(incarnation, counter, self._workers.share(_TOMBSTONES))

    def has(self, worker: str, incarnation: int, counter: int) -> bool:
        """Return whether a context was released."""
        found = self._workers.get(worker)
        return found is not None and found.has(incarnation, counter)

    def load(self, worker: str, incarnation: int, floor: int, counters: Sequence[int]) -> None:
        """Restore an entry that `dump` returned."""
        self._workers.touch(worker).load(incarnation, floor, counters)

    def dump(self) -> list[tuple[str, int, int, list[int]]]:
        """Return worker, incarnation, floor and single counters of each worker, for `load`."""
        return [(worker, *found.dump()) for worker, found in self._workers.items()]

    def __len__(self) -> int:
        return len(self._workers)

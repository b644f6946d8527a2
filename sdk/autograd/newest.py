"""A bounded memory by worker: the workers heard of last are kept."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar, final

V = TypeVar("V")

MAX_WORKERS = 4096
"""Workers remembered; short-lived clients come and go under ever new names."""


@final
class NewestWorkers(Generic[V]):
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

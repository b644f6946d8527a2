"""Each push once: what a server remembers of the pushes it has applied."""

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TypeAlias, final

from gradmesh.protos.errors import InvalidRequest
from gradmesh.sdk.autograd.tombstones import WorkerLru

_WINDOW = 4096

DedupeEntry: TypeAlias = tuple[str, int, int, list[int]]
"""What is remembered of a worker: its name and incarnation, the floor, numbers above it."""


@dataclass(slots=True)
class _Seen:
    """The pushes of one worker: all numbers up to the floor are too old to tell."""

    incarnation: int = 0
    floor: int = 0
    numbers: set[int] = field(default_factory=set)


@final
class DedupeTable:
    """The newest pushes of each worker.

    A worker numbers its pushes. Those within the window are remembered one by one; an older one is
    refused, since nobody could tell any more whether it took effect.
    """

    def __init__(self) -> None:
        # Guards _seen, and makes check and effect one; taken before the log's turn.
        self._lock = threading.RLock()
        self._seen = WorkerLru(_Seen)

    def once(self, sender: tuple[str, int, int], effect: Callable[[], object]) -> bool:
        """Run `effect` unless this push took effect before; return whether it ran.

        Args:
            sender: Worker, incarnation and the worker's number of the push.
            effect: Applies the push.

        Raises:
            InvalidRequest: The sender is none, or the push is too old.
        """
        worker, incarnation, number = sender
        with self._lock:
            if self.has(sender):
                return False
            effect()
            self._add(self._seen.touch(worker), incarnation, number)
            return True

    def has(self, sender: tuple[str, int, int]) -> bool:
        """Tell whether a push took effect, here or on a server whose rows came here.

        Raises:
            InvalidRequest: The sender is none, or the push is too old.
        """
        worker, incarnation, number = sender
        if not worker or not incarnation or not number:
            raise InvalidRequest("the push has no worker, incarnation or sequence; set all three")
        with self._lock:
            seen = self._seen.touch(worker)
            if incarnation < seen.incarnation or (
                incarnation == seen.incarnation and number in seen.numbers
            ):
                return True
            if incarnation == seen.incarnation and number <= seen.floor:
                raise InvalidRequest(
                    f"push {number} of {worker!r} is older than its newest {_WINDOW // 2}; whether "
                    "it took effect is not known any more",
                    worker=worker,
                    sequence=number,
                )
            return False

    def record(self, sender: tuple[str, int, int]) -> None:
        """Take notice of a push that took effect before this process began."""
        worker, incarnation, number = sender
        with self._lock:
            seen = self._seen.touch(worker)
            if incarnation >= seen.incarnation:
                self._add(seen, incarnation, number)

    def paused(self) -> AbstractContextManager[object]:
        """Return what lets no push begin while it is held."""
        return self._lock

    def dump(self) -> list[DedupeEntry]:
        """Return all that is remembered, for a snapshot."""
        with self._lock:
            return [
                (worker, seen.incarnation, seen.floor, sorted(seen.numbers))
                for worker, seen in self._seen.items()
            ]

    def load(self, marks: Sequence[DedupeEntry]) -> None:
        """Remember what `marks` returned."""
        with self._lock:
            for worker, incarnation, floor, numbers in marks:
                seen = self._seen.touch(worker)
                seen.incarnation, seen.floor, seen.numbers = incarnation, floor, set(numbers)

    def merge(self, marks: Sequence[DedupeEntry]) -> None:
        """Remember what `marks` returned on another server, whose rows came here."""
        with self._lock:
            for worker, incarnation, floor, numbers in marks:
                seen = self._seen.touch(worker)
                if incarnation > seen.incarnation:
                    seen.incarnation, seen.floor, seen.numbers = incarnation, floor, set(numbers)
                elif incarnation == seen.incarnation:
                    # Refusing one that is too old to tell is better than applying it twice.
                    seen.floor = max(seen.floor, floor)
                    seen.numbers |= set(numbers)

    @staticmethod
    def _add(seen: _Seen, incarnation: int, number: int) -> None:
        if incarnation > seen.incarnation:
            seen.incarnation, seen.floor, seen.numbers = incarnation, 0, set()
        seen.numbers.add(number)
        if len(seen.numbers) > _WINDOW:
            seen.floor = sorted(seen.numbers)[_WINDOW // 2]
            seen.numbers = {kept for kept in seen.numbers if kept > seen.floor}

"""Exactly-once pushes: the dedupe table of their sequence numbers."""

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TypeAlias, final

from gradmesh.protos.errors import InvalidRequest
from gradmesh.sdk.autograd.tombstones import WorkerLru

_WINDOW = 4096

DedupeEntry: TypeAlias = tuple[str, int, int, list[int]]
"""The entry of a worker: name, incarnation, floor, and sequence numbers above the floor."""


@dataclass(slots=True)
class _Entry:
    """The sequence numbers of one worker; those up to the floor are not stored any more."""

    incarnation: int = 0
    floor: int = 0
    numbers: set[int] = field(default_factory=set)


@final
class DedupeTable:
    """The sequence numbers of the newest pushes of each worker.

    A worker numbers its pushes. Numbers within the window are stored one by one. An older push is
    refused, because it is not stored any more whether it took effect. The window is smaller when
    there are many workers, so that all together are bounded.
    """

    def __init__(self) -> None:
        # Guards _entries, and makes check and effect atomic; acquired before the log's append lock.
        self._lock = threading.RLock()
        self._entries = WorkerLru(_Entry)

    def once(self, sender: tuple[str, int, int], effect: Callable[[], object]) -> bool:
        """Run `effect` unless this push took effect before; return whether it ran.

        Args:
            sender: Worker, incarnation and sequence number of the push.
            effect: Applies the push.

        Raises:
            InvalidRequest: The sender is incomplete, or the push is too old.
        """
        worker, incarnation, number = sender
        with self._lock:
            if self.has(sender):
                return False
            effect()
            self._add(self._entries.touch(worker), incarnation, number)
            return True

    def _window(self) -> int:
        return self._entries.share(_WINDOW)

    def has(self, sender: tuple[str, int, int]) -> bool:
        """Return whether a push took effect, here or on a server that migrated rows here.

        Raises:
            InvalidRequest: The sender is incomplete, or the push is too old.
        """
        worker, incarnation, number = sender
        if not worker or not incarnation or not number:
            raise InvalidRequest("the push has no worker, incarnation or sequence; set all three")
        with self._lock:
            # A push that is refused later leaves no entry, which would drop another worker's.
            entry = self._entries.get(worker)
            if entry is None:
                return False
            if incarnation < entry.incarnation or (
                incarnation == entry.incarnation and number in entry.numbers
            ):
                return True
            if incarnation == entry.incarnation and number <= entry.floor:
                raise InvalidRequest(
                    f"push {number} of {worker!r} is older than its newest {self._window() // 2}; "
                    "whether it took effect is not recorded any more",
                    worker=worker,
                    sequence=number,
                )
            return False

    def record(self, sender: tuple[str, int, int]) -> None:
        """Record a push that took effect before this process started."""
        worker, incarnation, number = sender
        with self._lock:
            entry = self._entries.touch(worker)
            if incarnation >= entry.incarnation:
                self._add(entry, incarnation, number)

    def paused(self) -> AbstractContextManager[object]:
        """Return a lock that keeps pushes from beginning while it is held."""
        return self._lock

    def dump(self) -> list[DedupeEntry]:
        """Return all entries, for a snapshot."""
        with self._lock:
            return [
                (worker, entry.incarnation, entry.floor, sorted(entry.numbers))
                for worker, entry in self._entries.items()
            ]

    def load(self, entries: Sequence[DedupeEntry]) -> None:
        """Restore what `dump` returned."""
        with self._lock:
            for worker, incarnation, floor, numbers in entries:
                entry = self._entries.touch(worker)
                entry.incarnation, entry.floor, entry.numbers = incarnation, floor, set(numbers)

    def merge(self, entries: Sequence[DedupeEntry]) -> None:
        """Add what `dump` returned on a server that migrated rows here."""
        with self._lock:
            for worker, incarnation, floor, numbers in entries:
                entry = self._entries.touch(worker)
                if incarnation > entry.incarnation:
                    entry.incarnation, entry.floor, entry.numbers = incarnation, floor, set(numbers)
                elif incarnation == entry.incarnation:
                    # Refusing a push that is too old is better than applying it twice.
                    entry.floor = max(entry.floor, floor)
                    entry.numbers |= set(numbers)
                    self._trim(entry)

    def _add(self, entry: _Entry, incarnation: int, number: int) -> None:
        if incarnation > entry.incarnation:
            entry.incarnation, entry.floor, entry.numbers = incarnation, 0, set()
        entry.numbers.add(number)
        self._trim(entry)

    def _trim(self, entry: _Entry) -> None:
        """Forget the oldest numbers of a worker that has too many."""
        window = self._window()
        if len(entry.numbers) > window:
            entry.floor = sorted(entry.numbers)[-window // 2 - 1]
            entry.numbers = {kept for kept in entry.numbers if kept > entry.floor}

"""What is left of contexts that are over, so that late messages cannot bring them back."""

from collections.abc import Sequence
from typing import final

_TOMBSTONES = 4096


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

"""A point in time by which something must be done, passed down instead of durations."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point on a monotonic clock.

    Args:
        at: The point.
        clock: The clock, replaced in tests.
    """

    at: float
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def after(cls, seconds: float, clock: Callable[[], float] = time.monotonic) -> Self:
        """Return the point `seconds` from now."""
        return cls(clock() + seconds, clock)

    def remaining_s(self) -> float:
        """Return the seconds left, never below zero."""
        return max(0.0, self.at - self.clock())

    @property
    def passed(self) -> bool:
        """Whether the time is over."""
        return self.clock() >= self.at

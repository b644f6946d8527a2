"""How fast a run goes."""

import time
from collections.abc import Callable
from typing import final


@final
class Meter:
    """Counts steps against the clock, from the end of the first step on.

    The first step compiles kernels and opens connections; it says nothing about the others.

    Args:
        step_samples: Samples of one step, of all ranks together.
        begun: Steps that were done before.
        clock: Seconds that only grow.
    """

    def __init__(
        self, step_samples: int, begun: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._step_samples = step_samples
        self._clock = clock
        self._built_at = clock()
        self._first: tuple[int, float] | None = None
        self._last = (begun, self._built_at)

    def count(self, steps: int) -> None:
        """Note that so many steps are done."""
        self._last = (steps, self._clock())
        if self._first is None:
            self._first = self._last

    def seconds(self) -> float:
        """Return the time from the beginning to the newest step."""
        return self._last[1] - self._built_at

    def samples_per_s(self) -> float:
        """Return samples of all ranks in a second, without the first step; 0 before a second."""
        if self._first is None or self._last[0] == self._first[0]:
            return 0.0
        steps = self._last[0] - self._first[0]
        return steps * self._step_samples / max(self._last[1] - self._first[1], 1e-9)

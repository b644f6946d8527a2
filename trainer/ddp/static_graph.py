"""A graph that is promised to be the same in every pass, and the check that it is."""

from __future__ import annotations

from typing import Any, final


@final
class StaticGraph:
    """Learn from one pass how often each gradient comes, then expect exactly that.

    Args:
        count: How many parameters there are.
    """

    def __init__(self, count: int) -> None:
        self._learning = [0] * count
        self._expected: list[int] | None = None
        self._left: list[int] = []
        self.used_on: Any = None
        """On how many ranks each parameter is used; None before the first reduction."""

    @property
    def is_known(self) -> bool:
        """Tell whether a pass has been learned from."""
        return self._expected is not None

    def unused(self) -> list[int]:
        """Return the parameters that the learned graph does not use."""
        assert self._expected is not None
        return [index for index, times in enumerate(self._expected) if times == 0]

    def begin(self) -> None:
        """Begin a pass."""
        self._left = list(self._expected or ())
        self._learning = [0] * len(self._learning)

    def arrive(self, index: int) -> int:
        """Count a gradient; return how many more are due, below 0 for one too many.

        While learning more is always due: everything is sent at the end of the pass.
        """
        if self._expected is None:
            self._learning[index] += 1
            return 1
        self._left[index] -= 1
        return self._left[index]

    def late(self) -> list[int]:
        """Return the parameters whose gradients are still due in this pass."""
        return [index for index, left in enumerate(self._left) if left > 0]

    def learn(self) -> None:
        """Take the pass that has ended for the pattern of all further ones."""
        self._expected = list(self._learning)

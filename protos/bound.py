"""Bounds on what a process keeps for its callers, and who has how much of it."""

from collections import Counter
from typing import NamedTuple, final

from gradmesh.protos.errors import LimitExceeded


@final
class Bound(NamedTuple):
    """How much of something a process keeps: for all callers together, and for one of them.

    Attributes:
        what: What is counted, in the plural.
        total: Most for all callers together.
        per_caller: Most for one caller; 0 if callers share the total.
        remedy: What to do at the limit.
    """

    what: str
    total: int
    per_caller: int
    remedy: str

    def check(self, held: int, own: int = 0, more: int = 1, caller: str = "") -> None:
        """Check that there is space for more.

        Args:
            held: What is kept for all callers.
            own: What is kept for the caller.
            more: How much is added.
            caller: Name of the caller; empty if it is not counted by itself.

        Raises:
            LimitExceeded: There is not; nothing may change then.
        """
        if held + more > self.total:
            raise self._exceeded(held, self.total, "in all")
        if caller and self.per_caller and own + more > self.per_caller:
            raise self._exceeded(own, self.per_caller, f"for {caller[:80]!r}")

    def _exceeded(self, held: int, most: int, whose: str) -> LimitExceeded:
        return LimitExceeded(
            f"{self.what}: {held} are kept {whose} and the limit is {most}; {self.remedy}",
            limit=self.what,
            most=most,
        )


@final
class Tally:
    """Counts what is kept for each caller, within a bound. The owner's lock guards it.

    Args:
        bound: The bound.
    """

    def __init__(self, bound: Bound) -> None:
        self._bound = bound
        self._own: Counter[str] = Counter()
        self.total = 0

    def of(self, caller: str) -> int:
        """Return how much is kept for a caller."""
        return self._own.get(caller, 0)

    @property
    def is_low(self) -> bool:
        """Whether not even one caller that had all of it would be near its limit."""
        return 2 * self.total < self._bound.per_caller

    def check(self, caller: str, more: int = 1) -> None:
        """Check that there is space for more.

        Raises:
            LimitExceeded: There is not.
        """
        bound = self._bound
        # Most calls end here; lookups are checked, too.
        if self.total + more > bound.total or self._own.get(caller, 0) + more > bound.per_caller:
            bound.check(self.total, self.of(caller), more, caller)

    def add(self, caller: str, more: int = 1) -> None:
        """Count what is kept from now on; `check` comes first."""
        self.total += more
        self._own[caller] += more

    def remove(self, caller: str, less: int = 1) -> None:
        """Count what is not kept any more."""
        self.total -= less
        self._own[caller] -= less
        # A caller without anything costs nothing: names are chosen by callers.
        if not self._own[caller]:
            del self._own[caller]

    def clear(self) -> None:
        """Count nothing any more."""
        self.total = 0
        self._own.clear()

"""A point in time by which something must be done, passed down instead of durations."""

import time
from collections.abc import Callable
from typing import NamedTuple, Self

from gradmesh.protos.errors import InvalidRequest

# What a server reserves of its time for the response to travel: a share, and a maximum.
_SHARE, _MAX_RESERVE_S = 0.5, 1.0

FOREVER_S = 20 * 86400.0
"""How long a wait with `math.inf` lasts; in milliseconds it fits into the int that poll takes."""


def check_timeout(timeout_s: float | None, default_s: float, name: str = "timeout_s") -> float:
    """Return the seconds that a wait may take, by the rule of every public `timeout_s`.

    None is the default, `math.inf` waits for ever, 0 is an error: code that computes the time left
    must not begin to wait for ever, or not at all, by accident.

    Raises:
        InvalidRequest: It is not a number above 0.
    """
    if timeout_s is None:
        return default_s
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not timeout_s > 0:
        raise InvalidRequest(
            f"{name} must be a number of seconds above 0, or math.inf for no limit, "
            f"not {timeout_s!r}"
        )
    return min(float(timeout_s), FOREVER_S)


class Deadline(NamedTuple):
    """A point on a monotonic clock.

    Args:
        at: The point.
        clock: The clock, replaced in tests.
    """

    at: float
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def after(cls, seconds: float, clock: Callable[[], float] = time.monotonic) -> Self:
        """Return the point `seconds` from now; with `math.inf` one that no call outlives."""
        return cls(clock() + (seconds if seconds < FOREVER_S else FOREVER_S), clock)

    @classmethod
    def within(cls, timeout_s: float | None, default_s: float) -> Self:
        """Return the deadline of a call that begins now, from a public `timeout_s`.

        Raises:
            InvalidRequest: It is not a number above 0.
        """
        return cls.after(check_timeout(timeout_s, default_s))

    def remaining_s(self) -> float:
        """Return the seconds left, never below zero."""
        left_s = self.at - self.clock()
        return left_s if left_s > 0.0 else 0.0

    def to_answer(self) -> "Deadline":
        """Return when a server must stop waiting so that its reason reaches the client in time.

        A client with time left repeats the call, and knows by then what it waits for.
        """
        return Deadline(self.at - min(_SHARE * self.remaining_s(), _MAX_RESERVE_S), self.clock)

    @property
    def passed(self) -> bool:
        """Whether the point has passed."""
        return self.clock() >= self.at

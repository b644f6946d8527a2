"""When to start a process that died again."""

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """Exponential delays, forgotten once a process has lived a while.

    Attributes:
        first_s: Delay before the first restart; doubles with each death in a row.
        most_s: Longest delay.
        healthy_s: A process that lived this long starts with a clean slate.
        most_in_a_row: Deaths in a row after which the supervisor gives up.
    """

    first_s: float = 0.5
    most_s: float = 10.0
    healthy_s: float = 30.0
    most_in_a_row: int = 8

    def deaths(self, before: int, lived_s: float) -> int:
        """Count a death after `before` others in a row."""
        return 1 if lived_s >= self.healthy_s else before + 1

    def delay_s(self, deaths: int) -> float | None:
        """Return the delay before the next start, or None to give up."""
        if deaths > self.most_in_a_row:
            return None
        # The exponent is capped, so that a great number of deaths cannot overflow.
        return min(self.most_s, self.first_s * 2.0 ** min(deaths - 1, 60))

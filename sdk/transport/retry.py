"""When and how often a failed call is sent again. The deadline is the budget."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from gradmesh.protos.errors import GradmeshError, Retry, Unreachable
from gradmesh.protos.method import Method


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Growing pauses between attempts.

    Args:
        first_s: Pause after the first failure.
        factor: Growth from pause to pause.
        max_s: Longest pause.
        jitter: Share of a pause that is random, so that many clients do not come back at once.
    """

    first_s: float = 0.05
    factor: float = 2.0
    max_s: float = 1.0
    jitter: float = 0.3

    def pauses(self) -> Iterator[float]:
        """Yield one pause after another, without end."""
        pause = self.first_s
        while True:
            yield pause * (1 - self.jitter * random.random())
            pause = min(self.max_s, pause * self.factor)


def may_repeat(method: Method, error: GradmeshError) -> bool:
    """Tell whether the call may be sent again after this error.

    A typed refusal means that the server did not act, so even a call that is not repeatable may go
    again. A lost connection says nothing about what the server did.
    """
    if error.retry is not Retry.CALL:
        return False
    return method.repeatable or not isinstance(error, Unreachable)

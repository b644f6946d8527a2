"""When to stop early: after some looks without anything better."""

import math
from typing import final


@final
class Patience:
    """Watches a loss.

    Args:
        looks: How many in a row may be no better than the best before; 0 for any number.
    """

    def __init__(self, looks: int) -> None:
        self._looks = looks
        self._best = math.inf
        self._in_vain = 0

    def is_exhausted(self, loss: float) -> bool:
        """Tell whether it was one look too many."""
        if loss < self._best:
            self._best, self._in_vain = loss, 0
        else:
            self._in_vain += 1
        return 0 < self._looks <= self._in_vain

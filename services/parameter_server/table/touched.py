"""Which rows changed since somebody took note: one bit a slot."""

from typing import final

import numpy as np

from gradmesh.engine.kernels import rank_bits
from gradmesh.services.parameter_server.table.index import Slots
from gradmesh.services.parameter_server.table.memory import Reserved


@final
class Touched:
    """The changed slots of a table.

    Args:
        capacity: How many slots there can be.
    """

    def __init__(self, capacity: int) -> None:
        self._bits = Reserved((capacity // 8 + 1,), np.uint8)

    def add(self, slots: Slots) -> None:
        """Note that rows changed; a slot of -1 is none."""
        rank_bits.first_uses(slots, self._bits.array, np.empty(slots.size, np.int64))

    def among(self, slots: Slots) -> Slots:
        """Return those of the slots that changed."""
        found = np.empty(slots.size, np.int64)
        rank_bits.absent(slots, self._bits.array, found)
        return found[found >= 0]

    def clear(self) -> None:
        """Begin anew."""
        self._bits.clear()

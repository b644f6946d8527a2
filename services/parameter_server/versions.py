"""Which rows have changed since when, for lookups that were made ahead of their step.

Every change of rows counts up. A table that somebody has looked up ahead remembers the count of
the last change of its rows; other tables cost nothing. Rows share cells of a table of fixed size,
by their number: a row may be said to have changed when another one did, never the other way round.
"""

import threading
from collections.abc import Iterable
from typing import final

import numpy as np
from numpy.typing import NDArray

from gradmesh.engine.kernels import sketch as kernels
from gradmesh.services.parameter_server.contexts import Slots

_CELL_BITS = 20
# Small, for a batch has cells all over a table, and most of a cell's cost is the miss.
_CELL = np.uint16
_MOST = int(np.iinfo(_CELL).max)


@final
class _TableVersions:
    """The last changes of the rows of one table after a count.

    Args:
        begin: The count.
        bits: The logarithm of the number of cells.
    """

    def __init__(self, begin: int, bits: int) -> None:
        self.begin = begin
        self._bits = bits
        # Pages that were never written take no memory: a small table's versions stay small.
        self._counts = np.zeros(1 << bits, _CELL)

    def set(self, slots: Slots, count: int) -> None:
        kernels.mark_changed(self._counts, slots, count - self.begin, self._bits)

    def after(self, slots: Slots, count: int) -> NDArray[np.int64]:
        positions, since = np.empty(slots.size, np.int64), count - self.begin
        return positions[: kernels.changed_after(self._counts, slots, since, self._bits, positions)]


@final
class RowVersions:
    """What changed in the tables that are watched, in bounded memory.

    Args:
        cell_bits: The logarithm of how many rows of a table have a cell of their own.
        most: How many changes after the first a cell can tell apart; then a table begins anew.
    """

    def __init__(self, cell_bits: int = _CELL_BITS, most: int = _MOST) -> None:
        self._cell_bits = cell_bits
        self._most = most
        self._lock = threading.Lock()  # guards all below
        self._count = 0
        self._versions: dict[str, _TableVersions] = {}

    def watch(self, tables: Iterable[str]) -> int:
        """Begin to remember; return the count of now.

        Rows that are read after this call are up to date unless `since` names them.
        """
        with self._lock:
            for table in tables:
                if table not in self._versions:
                    self._versions[table] = _TableVersions(self._count, self._cell_bits)
            return self._count

    @property
    def count(self) -> int:
        """How many changes there were so far."""
        return self._count

    def record(self, table: str, slots: Slots) -> None:
        """Take notice that rows of a table have changed; called after the change."""
        with self._lock:
            self._count += 1
            versions = self._versions.get(table)
            if versions is None:
                return
            if self._count - versions.begin > self._most:
                self._versions[table] = _TableVersions(self._count, self._cell_bits)
            else:
                versions.set(slots, self._count)

    def forget(self, table: str) -> None:
        """Take notice that any row of a table may have changed; called after the change."""
        with self._lock:
            self._count += 1
            if table in self._versions:
                self._versions[table] = _TableVersions(self._count, self._cell_bits)

    def since(self, count: int, table: str, slots: Slots) -> NDArray[np.int64]:
        """Return which of the slots may have changed after a count, as positions among them."""
        with self._lock:
            versions = self._versions.get(table)
            if versions is None or count < versions.begin:
                return np.arange(slots.size)
            return versions.after(slots, count)

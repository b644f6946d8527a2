"""Which rows have changed since a prefetch read them.

Every change of rows increments a counter. A table with prefetches stores the count of the last
change of its rows; other tables cost nothing. Rows share the cells of an array of fixed size, by
slot. A row may be reported as changed because of another row; a changed row is always reported.
"""

import threading
from collections.abc import Iterable
from typing import final

import numpy as np
from numpy.typing import NDArray

from gradmesh.engine.kernels import sketch as kernels
from gradmesh.services.parameter_server.open_context import Slots

_CELL_BITS = 20
# Small: the cells of a batch are scattered, and most of a cell's cost is the cache miss.
_CELL = np.uint16
# Watched tables, of 2 MiB each.
_MOST_TABLES = 256
_MOST = int(np.iinfo(_CELL).max)


@final
class _TableVersions:
    """The last changes of the rows of one table, relative to a count.

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
    """The changes of watched tables, in bounded memory.

    Args:
        cell_bits: The logarithm of the number of cells per table.
        most: Most changes that a cell can count; then the table's versions restart.
    """

    def __init__(self, cell_bits: int = _CELL_BITS, most: int = _MOST) -> None:
        self._cell_bits = cell_bits
        self._most = most
        self._lock = threading.Lock()  # guards all below
        self._count = 0
        self._versions: dict[str, _TableVersions] = {}

    def watch(self, tables: Iterable[str]) -> int:
        """Watch tables; return the current count.

        Rows that are read after this call are current unless `since` names them.
        """
        with self._lock:
            for table in tables:
                if table not in self._versions:
                    self._versions[table] = _TableVersions(self._count, self._cell_bits)
                    if len(self._versions) > _MOST_TABLES:
                        # Of a table that is not watched every row counts as changed.
                        del self._versions[next(iter(self._versions))]
            return self._count

    @property
    def count(self) -> int:
        """Number of changes so far."""
        return self._count

    def record(self, table: str, slots: Slots) -> None:
        """Record changed rows of a table; called after the change."""
        with self._lock:
            self._count += 1
            versions = self._versions.get(table)
            if versions is None:
                return
            if self._count - versions.begin > self._most:
                self._versions[table] = _TableVersions(self._count, self._cell_bits)
            else:
                versions.set(slots, self._count)

    def invalidate(self, table: str) -> None:
        """Record that any row of a table may have changed; called after the change."""
        with self._lock:
            self._count += 1
            if table in self._versions:
                self._versions[table] = _TableVersions(self._count, self._cell_bits)

    def since(self, count: int, table: str, slots: Slots) -> NDArray[np.int64]:
        """Return the positions of the slots that may have changed after a count."""
        with self._lock:
            versions = self._versions.get(table)
            if versions is None or count < versions.begin:
                return np.arange(slots.size)
            return versions.after(slots, count)

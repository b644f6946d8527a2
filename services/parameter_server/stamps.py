"""Which rows have changed since when, for lookups that were made ahead of their step.

Every change of rows counts up. A table that somebody has looked up ahead remembers the count of
the last change of each row that changed since; other tables cost nothing.
"""

import threading
from collections.abc import Iterable
from typing import final

import numpy as np
from numpy.typing import NDArray

from gradmesh.engine.kernels import IdMap
from gradmesh.services.parameter_server.contexts import Slots

_MAX_ROWS = 1 << 20


@final
class _TableStamps:
    """The last change of each row of one table that changed after a count.

    Args:
        begin: The count.
    """

    def __init__(self, begin: int) -> None:
        self.begin = begin
        self._places = IdMap()
        self._counts = np.zeros(0, np.int64)

    def __len__(self) -> int:
        return len(self._places)

    def set(self, slots: Slots, count: int) -> None:
        places = self._places.insert(slots)
        if len(self._places) > self._counts.size:
            grown = np.zeros(2 * len(self._places), np.int64)
            grown[: self._counts.size] = self._counts
            self._counts = grown
        self._counts[places] = count

    def after(self, slots: Slots, count: int) -> NDArray[np.int64]:
        places = self._places.find(slots)
        (known,) = np.nonzero(places >= 0)
        changed: NDArray[np.int64] = known[self._counts[places[known]] > count]
        return changed


@final
class Stamps:
    """What changed in the tables that are watched, in bounded memory.

    Args:
        max_rows: Rows of a table that are remembered; when there are more, memory begins anew, and
            whoever asks about the time before gets all rows.
    """

    def __init__(self, max_rows: int = _MAX_ROWS) -> None:
        self._max_rows = max_rows
        self._lock = threading.Lock()  # guards all below
        self._count = 0
        self._stamps: dict[str, _TableStamps] = {}

    def watch(self, tables: Iterable[str]) -> int:
        """Begin to remember; return the count of now.

        Rows that are read after this call are up to date unless `since` names them.
        """
        with self._lock:
            for table in tables:
                if table not in self._stamps:
                    self._stamps[table] = _TableStamps(self._count)
            return self._count

    def record(self, table: str, slots: Slots) -> None:
        """Take notice that rows of a table have changed; called after the change."""
        with self._lock:
            self._count += 1
            stamps = self._stamps.get(table)
            if stamps is None:
                return
            if len(stamps) + slots.size > self._max_rows and len(stamps):
                # Of what changed before now nothing is known any more, this change included.
                self._stamps[table] = _TableStamps(self._count)
            else:
                stamps.set(slots, self._count)

    def forget(self, table: str) -> None:
        """Take notice that any row of a table may have changed; called after the change."""
        with self._lock:
            self._count += 1
            if table in self._stamps:
                self._stamps[table] = _TableStamps(self._count)

    def since(self, count: int, table: str, slots: Slots) -> NDArray[np.int64]:
        """Return which of the slots have changed after a count, as places among them."""
        with self._lock:
            stamps = self._stamps.get(table)
            if stamps is None or count < stamps.begin:
                return np.arange(slots.size)
            return stamps.after(slots, count)

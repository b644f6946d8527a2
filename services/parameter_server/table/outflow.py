"""Rows on their way to other servers, while the table goes on changing.

All rows are read once, then again those that changed since; when nothing changes any more, what is
left is little. Rows that were only looked up need not go: they begin the same everywhere. Tables in
which a look-up decides which rows live are read once, when nothing changes any more.
"""

import threading
from typing import final

import numpy as np
from numpy.typing import NDArray

from gradmesh.protos.errors import ReshardAborted
from gradmesh.protos.sharding import Ids, buckets_of
from gradmesh.services.parameter_server.table.cut import Block
from gradmesh.services.parameter_server.table.index import Index, Slots
from gradmesh.services.parameter_server.table.rows import Rows
from gradmesh.services.parameter_server.table.survey import Marks, survey_of

# Ids noted one by one before repeated ones are removed.
_NOTED = 1 << 20
_NO_IDS: Ids = np.empty(0, np.int64)


@final
class Outflow:
    """Reads the rows of a table for other servers.

    Args:
        table: Name of the table.
        lock: Of the table.
        index: Of the table.
        rows: Of the table.
    """

    def __init__(self, table: str, lock: threading.Lock, index: Index, rows: Rows) -> None:
        self._table = table
        self._lock = lock
        self._index = index
        self._rows = rows
        self._survey = survey_of(index)
        # What changed since it was last asked for; None while nobody asks.
        self._changed: list[Ids] | None = None
        self._count = 0
        self._lost = False

    @property
    def is_followed(self) -> bool:
        """Whether changes are noted."""
        return self._changed is not None

    def note(self, ids: Ids) -> None:
        """Take notice of rows that change. Called under the table's lock."""
        if self._changed is None:
            return
        self._changed.append(ids.copy())
        self._count += ids.size
        if self._count > _NOTED:
            self._changed = [np.unique(np.concatenate(self._changed))]
            # Twice as many before the next time, at least.
            self._count = min(0, _NOTED - self._changed[0].size)

    def forget(self) -> None:
        """All rows are about to go. Called under the table's lock."""
        self._lost = self._changed is not None

    def follow(self) -> None:
        """Begin to note changes."""
        with self._lock:
            self._changed, self._count, self._lost = [], 0, False

    def stop(self) -> None:
        """Note changes no more."""
        with self._lock:
            self._changed, self._lost = None, False

    def take_changed(self) -> Ids:
        """Return which rows have changed since this was asked last, each once.

        Raises:
            ReshardAborted: All rows were replaced meanwhile.
        """
        with self._lock:
            if self._lost:
                raise ReshardAborted(
                    f"table {self._table!r} was reset or restored while its rows moved; scale "
                    "again when that is over",
                    table=self._table,
                )
            noted, self._changed, self._count = self._changed or [], [], 0
        return np.unique(np.concatenate(noted)) if noted else _NO_IDS

    def rows_of(self, ids: Ids) -> Block:
        """Return rows and their state, without those that are not there."""
        with self._lock:
            slots = self._index.peek(self._index.handles_of(ids), 0)
            held = slots >= 0
            return self._read(ids[held], slots[held], None)

    @property
    def pieces(self) -> int:
        """How many pieces there are."""
        return self._survey.pieces

    def piece(self, number: int, wanted: NDArray[np.bool_]) -> Block:
        """Return the rows of a piece that are in wanted buckets, with state and marks.

        Those that have expired and were not removed yet, too: they count where room is short.

        Args:
            number: Of the piece.
            wanted: For each bucket whether its rows are wanted.
        """
        with self._lock:
            ids, slots, marks = self._survey.piece(number, 0)
            kept = wanted[buckets_of(ids)]
            return self._read(ids[kept], slots[kept], marks[kept])

    def memory(self, wanted: NDArray[np.bool_]) -> Block:
        """Return what is kept for wanted buckets rather than for rows; empty for nothing."""
        with self._lock:
            found = self._survey.memory()
        if not found:
            return {}
        kept = wanted[found["buckets"]]
        return {name: array[kept] for name, array in found.items()} if kept.any() else {}

    def _read(self, ids: Ids, slots: Slots, marks: Marks | None) -> Block:
        if not ids.size:
            return {}
        rows = np.empty((ids.size, self._rows.layout.dim), self._rows.layout.dtype)
        self._rows.read(slots, rows)
        block: Block = {"ids": ids.copy(), "rows": rows}
        if marks is not None and self._survey.forgets:
            block["marks"] = marks.copy()
        return block | {f"state.{n}": a for n, a in self._rows.state(slots).items()}

"""The index of a dense table: ids 0 to rows-1, each with its place from the beginning.

Places are ranks among the ids of this shard, kept as bits; rows are made when first used, so that
a table of any size is there at once.
"""

from collections.abc import Iterator
from typing import final

import numpy as np

from gradmesh.engine.kernels import rank_bits
from gradmesh.protos.errors import IdOutOfRange
from gradmesh.protos.sharding import BUCKETS, Ids
from gradmesh.services.parameter_server.table.index import Found, Handles, Index, Slots, check_ids
from gradmesh.services.parameter_server.table.memory import Reserved
from gradmesh.services.parameter_server.table.place import Place

_BLOCK_ROWS = 1 << 16


@final
class DenseIndex(Index):
    """Places of fixed rows; a handle is a slot.

    Args:
        table: Name, for messages.
        rows: Rows of the whole table.
        place: What of it is here.
    """

    def __init__(self, table: str, rows: int, place: Place) -> None:
        self._table = table
        self._rows = rows
        self._place = place
        self._words = None if place.is_everything else Reserved((-(-rows // 64), 2), np.uint64)
        self._count = rows
        if self._words is not None:
            self._count = int(rank_bits.mark_owned(self._words.array, rows, place.local))
        self._used = Reserved((-(-self._count // 8) + 1,), np.uint8)

    @staticmethod
    def estimate_bytes(rows: int, place: Place) -> int:
        """Return what the index of a shard takes, before it is made."""
        words = 0 if place.is_everything else -(-rows // 64) * 16
        return words + -(-rows * place.count // BUCKETS) // 8

    def handles_of(self, ids: Ids) -> Handles:
        """Return the slots of ids."""
        check_ids(ids, self._table)
        wrong = rank_bits.outside(ids, self._rows)
        if wrong >= 0:
            bad = int(ids[wrong])
            raise IdOutOfRange(
                f"table {self._table!r}: id {bad} is not among its rows 0 to {self._rows - 1}",
                table=self._table,
                id=bad,
            )
        if self._words is None:
            return ids.copy()
        slots = np.empty(ids.size, np.int64)
        foreign = rank_bits.ranks(ids, self._words.array, slots)
        if foreign >= 0:
            raise self._place.refuse(self._table, int(ids[foreign]))
        return slots

    def ids_of(self, handles: Handles) -> Ids:
        """Return the ids at slots."""
        if self._words is None:
            return handles
        ids = np.empty(handles.size, np.int64)
        rank_bits.select(handles, self._words.array, ids)
        return ids

    def peek(self, handles: Handles, step: int) -> Slots:
        """Return the slots of rows that were used before, -1 for others."""
        slots = np.empty(handles.size, np.int64)
        rank_bits.absent(handles, self._used.array, slots)
        return slots

    def use(self, handles: Handles, step: int, *, counts: bool) -> Found:
        """Return slots; rows used for the first time are fresh."""
        fresh = np.empty(handles.size, np.int64)
        count = rank_bits.first_uses(handles, self._used.array, fresh)
        if not count:
            return Found(handles)
        slots = fresh[:count].copy()
        return Found(handles, 0, self.ids_of(slots), slots)

    def reset(self) -> None:
        """Make all rows as if never used."""
        self._used.clear()

    def blocks(self, step: int) -> Iterator[tuple[Ids, Slots]]:
        """Yield the rows that were used, in order of their slots."""
        for begin in range(0, self._count, _BLOCK_ROWS):
            slots = np.arange(begin, min(begin + _BLOCK_ROWS, self._count))
            found = self.peek(slots, step)
            held = found[found >= 0]
            if held.size:
                yield self.ids_of(held), held

    def sweep(self, step: int) -> None:
        """Nothing is put off."""

    @property
    def row_count(self) -> int:
        """Rows of this shard, used or not."""
        return self._count

    @property
    def bytes(self) -> int:
        """Memory of ranks and used bits."""
        words = 0 if self._words is None else self._words.array.nbytes
        return words + self._used.array.nbytes

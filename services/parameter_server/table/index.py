"""Where the rows of a shard are: the part in which dense and hash tables differ.

Callers hold *handles*, which stay true whatever is evicted meanwhile; only inside one locked
operation are handles turned into slots. That is why a late gradient can never reach another row.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gradmesh.protos.errors import InvalidRequest
from gradmesh.protos.frame import Array
from gradmesh.protos.sharding import Ids

Handles: TypeAlias = NDArray[np.int64]
Slots: TypeAlias = NDArray[np.int64]

_NONE: Slots = np.empty(0, np.int64)


class Found(NamedTuple):
    """Where rows are.

    Args:
        slots: int64 [n], -1 where there is no row.
        missing: How many had none before this use.
        fresh_ids: Ids of the rows that were made, or begin anew.
        fresh_slots: Their slots; a slot may come twice, then the last id has it.
    """

    slots: Slots
    missing: int = 0
    fresh_ids: Ids = _NONE
    fresh_slots: Slots = _NONE


class Index(ABC):
    """Finds rows by id. All but `handles_of` is called under the table's lock."""

    @abstractmethod
    def handles_of(self, ids: Ids) -> Handles:
        """Return handles, int64 [n].

        Raises:
            IdOutOfRange: One is no row of the table.
            StaleShardMap: One lives on another server.
        """

    @abstractmethod
    def ids_of(self, handles: Handles) -> Ids:
        """Return the ids of handles."""

    @abstractmethod
    def peek(self, handles: Handles, step: int) -> Slots:
        """Return slots, -1 where there is no row; MUST change nothing."""

    @abstractmethod
    def use(self, handles: Handles, step: int, *, counts: bool) -> Found:
        """Return slots for reading or changing rows, making rows that are missing.

        Args:
            handles: Whose rows.
            step: Steps applied to the table, the clock of expiry.
            counts: Whether this use counts towards admission.

        Raises:
            StoreFull: New rows do not fit; nothing is changed then.
        """

    def check_room(self, handles: Handles, step: int, others: int) -> int:
        """Return the memory that making missing rows takes; MUST change nothing.

        Args:
            handles: Whose rows.
            step: Steps applied to the table.
            others: Memory that other tables are about to take.

        Raises:
            StoreFull: They will not fit.
        """
        return 0

    @abstractmethod
    def reset(self) -> None:
        """Forget all rows."""

    @abstractmethod
    def blocks(self, step: int) -> Iterator[tuple[Ids, Slots]]:
        """Yield (ids, slots) of all rows that were ever used, each once, in pieces."""

    @abstractmethod
    def sweep(self, step: int) -> None:
        """Do a little of what can be put off, once a step."""

    @property
    @abstractmethod
    def row_count(self) -> int:
        """How many rows there are."""

    @property
    @abstractmethod
    def bytes(self) -> int:
        """Memory of the index itself."""

    @property
    def slot_count(self) -> int:
        """How many slots take memory; for fixed rows all do, used or not."""
        return self.row_count

    @property
    def bytes_a_row(self) -> float:
        """What the arithmetic says the index takes for a row."""
        return self.bytes / max(1, self.row_count)

    @property
    def evicted(self) -> int:
        """How many rows were evicted so far."""
        return 0


def check_ids(ids: Array, table: str) -> None:
    """Return if an array may be ids.

    Raises:
        InvalidRequest: It is not int64 [n].
    """
    if ids.dtype != np.int64 or ids.ndim != 1:
        raise InvalidRequest(
            f"table {table!r}: ids must be int64 [n], not {ids.dtype} {ids.shape}", table=table
        )

"""Memory that costs nothing until it is touched, so that arrays grow without ever being copied."""

import mmap
import threading
from typing import Any, final

import numpy as np

from gradmesh.protos.errors import StoreFull
from gradmesh.protos.frame import Array


@final
class Budget:
    """Memory for all tables of a server.

    Args:
        max_bytes: How much there is.
        owner: Name of the server, for messages.
    """

    def __init__(self, max_bytes: int, owner: str = "this server") -> None:
        self.max_bytes = max_bytes
        self._owner = owner
        self._lock = threading.Lock()  # guards _taken
        self._taken = 0

    @property
    def taken(self) -> int:
        """Bytes promised to tables."""
        return self._taken

    @property
    def left(self) -> int:
        """Bytes that can still be promised."""
        return self.max_bytes - self._taken

    def take(self, table: str, need: int) -> None:
        """Promise memory to a table.

        Raises:
            StoreFull: There is not so much left; nothing is promised.
        """
        with self._lock:
            self.check(table, need)
            self._taken += need

    def check(self, table: str, need: int, others: int = 0) -> None:
        """Return if there is memory for a table, and for what others are about to take.

        Raises:
            StoreFull: There is not so much left.
        """
        held = self._taken + others
        if held + need > self.max_bytes:
            raise StoreFull(
                f"table {table!r} takes {need} bytes more on {self._owner}, {held} of "
                f"{self.max_bytes} are in use; raise max_store_bytes, add parameter servers or "
                "give the table an eviction with max_bytes",
                table=table,
                need=need,
                held=held,
                max_bytes=self.max_bytes,
            )

    def settle(self, difference: int) -> None:
        """Correct what was promised by what it turned out to be."""
        with self._lock:
            self._taken += difference


@final
class Account:
    """What one table has of a budget. Its calls are made one at a time.

    Args:
        budget: Of the server.
        table: Name of the table.
    """

    def __init__(self, budget: Budget, table: str) -> None:
        self.max_bytes = budget.max_bytes
        self._budget = budget
        self._table = table
        self._held = 0

    def take(self, need: int) -> None:
        """Ask for more memory.

        Raises:
            StoreFull: There is not so much left; nothing is promised.
        """
        self._budget.take(self._table, need)
        self._held += need

    def check(self, need: int, others: int) -> None:
        """Return if there is so much memory, and more for other tables.

        Raises:
            StoreFull: There is not so much left.
        """
        self._budget.check(self._table, need, others)

    def settle(self, held: int) -> None:
        """Say how much it really is."""
        self._budget.settle(held - self._held)
        self._held = held


# Python names this flag only from 3.13 on; it is the same on every Linux. Without it the kernel
# would refuse address space beyond what it could ever back.
_MAP_NORESERVE = 0x4000

PAGE_BYTES = mmap.PAGESIZE


@final
class Reserved:
    """A zeroed array whose pages come into being when they are touched.

    Args:
        shape: Of the array.
        dtype: Of its elements.
        huge_from: Offset in bytes from which on to ask for huge pages; None for none. For memory
            that fills from the beginning; what comes before it stays exact, for small tables.

    Raises:
        StoreFull: The system has no such address space.
    """

    def __init__(self, shape: tuple[int, ...], dtype: Any, *, huge_from: int | None = None) -> None:
        kind = np.dtype(dtype)
        size = max(1, int(np.prod(shape, dtype=object))) * kind.itemsize
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        try:
            self._map = mmap.mmap(-1, size, flags=flags)
        except (OSError, OverflowError) as error:
            raise StoreFull(
                f"no address space for {size} bytes of a table: {error}; lower max_store_bytes or "
                "the table's limits, or raise the limit of the process",
                need=size,
            ) from None
        # A core dump of reserved space helps nobody.
        self._map.madvise(mmap.MADV_DONTDUMP)
        if huge_from is not None:
            first = -(-huge_from // PAGE_BYTES) * PAGE_BYTES
            if first < size:
                self._map.madvise(mmap.MADV_HUGEPAGE, first, size - first)
        flat: Array = np.frombuffer(self._map, kind, count=int(np.prod(shape, dtype=object)))
        self.array: Array = flat.reshape(shape)

    def clear(self) -> None:
        """Give all memory back; the array is zero again."""
        self._map.madvise(mmap.MADV_DONTNEED)

    def release(self, begin: int, end: int) -> None:
        """Give back the whole pages between two offsets in bytes; they are zero again."""
        first = -(-begin // PAGE_BYTES) * PAGE_BYTES
        last = end // PAGE_BYTES * PAGE_BYTES
        if last > first:
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)

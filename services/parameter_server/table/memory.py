"""Memory budgets, and reserved address space in which arrays grow without copies."""

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
        max_bytes: Size of the budget.
        owner: Name of the server, for messages.
    """

    def __init__(self, max_bytes: int, owner: str = "this server") -> None:
        self.max_bytes = max_bytes
        self._owner = owner
        self._lock = threading.Lock()  # guards _taken
        self._taken = 0

    @property
    def taken(self) -> int:
        """Bytes reserved by tables."""
        return self._taken

    @property
    def left(self) -> int:
        """Bytes that can still be reserved."""
        return self.max_bytes - self._taken

    def take(self, table: str, need: int) -> None:
        """Reserve memory for a table.

        Raises:
            StoreFull: Not enough is left; nothing is reserved.
        """
        with self._lock:
            self.check(table, need)
            self._taken += need

    def check(self, table: str, need: int, others: int = 0) -> None:
        """Check that memory is left for a table and `others`.

        Raises:
            StoreFull: Not enough is left.
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
        """Correct an estimated reservation by a difference."""
        with self._lock:
            self._taken += difference


@final
class Account:
    """One table's share of a budget. Calls are serialised by the caller.

    Args:
        budget: Budget of the server.
        table: Name of the table.
    """

    def __init__(self, budget: Budget, table: str) -> None:
        self.max_bytes = budget.max_bytes
        self._budget = budget
        self._table = table
        self._held = 0

    def take(self, need: int) -> None:
        """Reserve more memory.

        Raises:
            StoreFull: Not enough is left; nothing is reserved.
        """
        self._budget.take(self._table, need)
        self._held += need

    def check(self, need: int, others: int) -> None:
        """Check that memory is left for this table and `others`.

        Raises:
            StoreFull: Not enough is left.
        """
        self._budget.check(self._table, need, others)

    def settle(self, held: int) -> None:
        """Replace the reservation by the measured size."""
        self._budget.settle(held - self._held)
        self._held = held


# Python has this constant from 3.13 on; it is the same on every Linux. Without it the kernel
# refuses address space beyond the memory of the machine.
_MAP_NORESERVE = 0x4000

PAGE_BYTES = mmap.PAGESIZE


@final
class Reserved:
    """A zeroed array whose pages are allocated when they are touched.

    Args:
        shape: Shape of the array.
        dtype: Type of its elements.
        huge_from: Offset in bytes from which on huge pages are requested; None for none. Meant for
            memory that fills from the beginning: before the offset small tables stay exact.

    Raises:
        StoreFull: The system refuses the address space.
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
        # Keep reserved space out of core dumps.
        self._map.madvise(mmap.MADV_DONTDUMP)
        if huge_from is not None:
            first = -(-huge_from // PAGE_BYTES) * PAGE_BYTES
            if first < size:
                self._map.madvise(mmap.MADV_HUGEPAGE, first, size - first)
        flat: Array = np.frombuffer(self._map, kind, count=int(np.prod(shape, dtype=object)))
        self.array: Array = flat.reshape(shape)

    def clear(self) -> None:
        """Release all memory; the array is zero again."""
        self._map.madvise(mmap.MADV_DONTNEED)

    def release(self, begin: int, end: int) -> None:
        """Release the whole pages between two offsets in bytes; they are zero again."""
        first = -(-begin // PAGE_BYTES) * PAGE_BYTES
        last = end // PAGE_BYTES * PAGE_BYTES
        if last > first:
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)

"""Memory that costs nothing until it is touched, so that arrays grow without ever being copied."""

import mmap
from typing import Any, final

import numpy as np

from gradmesh.protos.errors import StoreFull
from gradmesh.protos.frame import Array

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

"""Rows on disk with a hot set in memory.

A slab file, mapped into memory, holds every row. Rows in use are copied into a fixed number of
positions in memory. The clock algorithm chooses which rows leave; they are written back to the
file. Only the index grows with the table. The file is scratch: it has no name and ends with the
process.
"""

import mmap
import os
import tempfile
import weakref
from pathlib import Path
from typing import Any, final

import numpy as np

from gradmesh.engine.kernels import clock, copy_in, copy_out
from gradmesh.protos.errors import InvalidRequest, StoreFull
from gradmesh.protos.frame import Array
from gradmesh.services.parameter_server.table.index import Slots
from gradmesh.services.parameter_server.table.memory import Reserved
from gradmesh.services.parameter_server.table.rows import Layout, Rows

# Rows moved between file and memory after which the file's pages are dropped from the resident set.
_DROP_PAGES_MOVES = 1 << 16
_GROW_BYTES = 1 << 20
_POSITION_BYTES = 17
WHERE_BYTES = 4


@final
class _Slab:
    """One array in an unnamed file, mapped."""

    def __init__(self, directory: Path, shape: tuple[int, int], dtype: Any) -> None:
        kind = np.dtype(dtype)
        self._size = max(1, shape[0] * shape[1] * kind.itemsize)
        with tempfile.TemporaryFile(dir=directory) as file:
            os.ftruncate(file.fileno(), self._size)
            self._file = os.dup(file.fileno())
        self.close = weakref.finalize(self, os.close, self._file)
        self._ensured = 0
        self._map = mmap.mmap(self._file, self._size)
        self._map.madvise(mmap.MADV_RANDOM)
        flat: Array = np.frombuffer(self._map, kind, count=shape[0] * shape[1])
        self.array = flat.reshape(shape)

    def ensure(self, rows: int) -> None:
        """Allocate disk blocks for the first rows; a write without them would kill the process."""
        size = rows * self.array.shape[1] * self.array.dtype.itemsize
        if size > self._ensured:
            grown = min(self._size, max(size, self._ensured + _GROW_BYTES))
            os.posix_fallocate(self._file, 0, grown)
            self._ensured = grown

    @property
    def bytes(self) -> int:
        return os.fstat(self._file).st_blocks * 512

    def drop_pages(self) -> None:
        """Drop the pages from the resident set; the kernel writes them back later."""
        self._map.madvise(mmap.MADV_DONTNEED)

    def clear(self) -> None:
        self._map.madvise(mmap.MADV_DONTNEED)
        os.ftruncate(self._file, 0)
        os.ftruncate(self._file, self._size)
        self._ensured = 0


@final
class TieredRows(Rows):
    """Rows in a slab file, the hot ones in memory.

    Args:
        layout: Layout of a row.
        capacity: Slots of the file.
        hot_bytes: Memory for the hot set.
        directory: Directory of the file.
        max_file_bytes: Most bytes of the file.

    Raises:
        InvalidRequest: The hot set is smaller than two rows, or the directory does not exist.
        StoreFull: The file would exceed `max_file_bytes`.
    """

    def __init__(
        self,
        layout: Layout,
        capacity: int,
        *,
        hot_bytes: int,
        directory: Path,
        max_file_bytes: int,
    ) -> None:
        self.layout = layout
        positions = min(hot_bytes // (layout.row_bytes + _POSITION_BYTES), max(2, capacity))
        if positions < 2 or not directory.is_dir():
            raise InvalidRequest(
                f"a hot set of {hot_bytes} bytes in {str(directory)!r}: it needs a directory and "
                f"space for two rows of {layout.row_bytes} bytes"
            )
        if capacity * layout.row_bytes > max_file_bytes:
            raise StoreFull(
                f"{capacity} rows of {layout.row_bytes} bytes do not fit into a slab file of "
                f"{max_file_bytes} bytes; raise max_ssd_bytes or the table's limits",
                max_bytes=max_file_bytes,
            )
        names = {"": (layout.dim, layout.dtype)}
        names |= {slot.name: (slot.width, layout.wide) for slot in layout.slots}
        self._cold = {n: _Slab(directory, (capacity, w), d) for n, (w, d) in names.items()}
        self._hot = {n: Reserved((positions, w), d) for n, (w, d) in names.items()}
        self._where = Reserved((capacity,), np.int32)
        self._owners = np.full(positions, -1, np.int64)
        self._chance = np.zeros(positions, np.uint8)
        self._pinned = np.zeros(positions, np.int64)
        self._hand = np.zeros(1, np.int64)
        self._turn = 0
        self._moved = 0
        self.faults = 0

    def __len__(self) -> int:
        return len(self._where.array)

    @property
    def most_at_once(self) -> int:
        """Half of the hot set, so that the clock always finds a position to free."""
        return max(1, min(super().most_at_once, self._owners.size // 2))

    @property
    def file_bytes(self) -> int:
        """Blocks that the slab files take on disk."""
        return sum(slab.bytes for slab in self._cold.values())

    def _arrays(self) -> tuple[Array, dict[str, Array]]:
        state = {name: held.array for name, held in self._hot.items() if name}
        return self._hot[""].array, state

    def _positions(self, slots: Slots) -> Slots:
        self._turn += 1
        positions = np.empty(slots.size, np.int64)
        moves = np.empty((slots.size, 3), np.int64)
        count = clock.plan(
            slots,
            self._where.array,
            self._owners,
            self._chance,
            self._pinned,
            self._turn,
            self._hand,
            positions,
            moves,
        )
        if count:
            self._move(moves[:count])
        return positions

    def _move(self, moves: Slots) -> None:
        leaving = moves[moves[:, 1] >= 0]
        out_of, gone = leaving[:, 0].copy(), leaving[:, 1].copy()
        into, come = moves[:, 0].copy(), moves[:, 2].copy()
        for name, slab in self._cold.items():
            hot = self._hot[name].array
            buffer = np.empty((max(gone.size, come.size), hot.shape[1]), hot.dtype)
            copy_out(hot, out_of, buffer)
            copy_in(slab.array, gone, buffer[: gone.size])
            copy_out(slab.array, come, buffer)
            copy_in(hot, into, buffer[: come.size])
        self.faults += int(come.size)
        self._moved += len(moves)
        if self._moved >= _DROP_PAGES_MOVES:
            self._moved = 0
            for slab in self._cold.values():
                slab.drop_pages()

    def ensure(self, slots: int) -> None:
        """Allocate disk for the first slots.

        Raises:
            StoreFull: The disk is full.
        """
        try:
            for slab in self._cold.values():
                slab.ensure(slots)
        except OSError as error:
            raise StoreFull(
                f"the slab file cannot hold {slots} rows: {error.strerror}; free the disk of "
                "ssd_path or raise the table's limits",
                rows=slots,
            ) from None

    def clear(self) -> None:
        """Empty the hot set and the file."""
        for slab in self._cold.values():
            slab.clear()
        self._where.clear()
        self._owners[:] = -1
        self._chance[:] = 0

    def close(self) -> None:
        """Close the file."""
        for slab in self._cold.values():
            slab.close()

    def memory_bytes(self, slots: int) -> int:
        """Return the memory of the hot set and of the positions of a number of slots."""
        return self._owners.size * (self.layout.row_bytes + _POSITION_BYTES) + slots * WHERE_BYTES

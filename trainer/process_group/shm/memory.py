"""The memory that one rank shares with the others, and the arrays in it.

The mapping is as large as the machine's memory, but the kernel backs only pages that are written:
it never has to grow, and one descriptor is enough. It is not in a file system, so nothing is left
behind however a process ends.
"""

import ctypes
import fcntl
import math
import mmap
import os
import threading
import weakref
from collections import deque
from typing import Any, final

import numpy as np
import numpy.typing as npt

from gradmesh.sdk.transport.lane.sealed import SEALS, sealed_size
from gradmesh.trainer.process_group.process_group import AnyArray

LEAST_BYTES = 1 << 20
"""Smallest memory of a rank: compiled code uses its slots without a check."""

# Address space is what a larger one would take.
_MOST_BYTES = 1 << 44


def _machine_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE


@final
class SharedMemory:
    """Map one rank's memory into this process.

    Args:
        fd: Its descriptor; the caller closes it.

    Attributes:
        address: Its address in this process.
        size: Size in bytes.

    Raises:
        ValueError: It is not memory that can be mapped safely.
    """

    def __init__(self, fd: int) -> None:
        self.size = sealed_size(fd)
        if not LEAST_BYTES <= self.size <= _MOST_BYTES:
            raise ValueError(f"the memory of a rank has {self.size} bytes")
        self.map = mmap.mmap(fd, self.size, flags=mmap.MAP_SHARED)
        self._bytes = np.frombuffer(self.map, np.uint8)
        self.address: int = self._bytes.__array_interface__["data"][0]

    @staticmethod
    def create() -> int:
        """Return the descriptor of new memory that cannot be shrunk."""
        fd = os.memfd_create("gradmesh-process-group", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, _machine_bytes())
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def has(self, offset: int, nbytes: int) -> bool:
        """Return whether a part of the memory exists, given numbers that another rank wrote."""
        return offset >= 0 and 0 <= nbytes <= self.size - offset

    def array(self, offset: int, shape: Any, dtype: npt.DTypeLike) -> AnyArray:
        """Return a part of the memory as an array."""
        return np.ndarray(shape, dtype, self._bytes, offset)

    def offset_of(self, array: AnyArray) -> int:
        """Return the offset of a contiguous array in this memory, -1 if it is not in it."""
        offset: int = array.__array_interface__["data"][0] - self.address
        inside = 0 <= offset < self.size and array.flags.c_contiguous
        return offset if inside else -1


@final
class SharedHeap:
    """Allocate arrays in a shared memory, and free them with their last reference.

    Args:
        memory: The memory.
        start: Offset of the heap; the memory before it has other uses.
    """

    def __init__(self, memory: SharedMemory, start: int) -> None:
        self._memory = memory
        self._lock = threading.Lock()  # guards _free
        self._returned: deque[tuple[int, int]] = deque()
        self._free = [(_pages(start), memory.size // mmap.PAGESIZE * mmap.PAGESIZE)]

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> AnyArray:
        """Return an uninitialised array; in private memory if no shared memory is left."""
        dtype = np.dtype(dtype)
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        nbytes = math.prod(sizes) * dtype.itemsize
        offset = self._allocate(_pages(max(nbytes, 1)))
        if offset is None:
            return np.empty(sizes, dtype)
        # All arrays and views of it hold this object, and it holds the mapping.
        part = (ctypes.c_char * max(nbytes, 1)).from_buffer(self._memory.map, offset)
        weakref.finalize(part, self._free_pages, offset, _pages(max(nbytes, 1))).atexit = False
        return np.frombuffer(memoryview(part), np.uint8, nbytes).view(dtype).reshape(sizes)

    def _allocate(self, nbytes: int) -> int | None:
        with self._lock:
            self._merge()
            for index, (start, stop) in enumerate(self._free):
                if stop - start >= nbytes:
                    self._free[index] = (start + nbytes, stop)
                    return start
        return None

    def _free_pages(self, offset: int, nbytes: int) -> None:
        # Punches a hole: the pages go back to the system, here and at the peers.
        self._memory.map.madvise(mmap.MADV_REMOVE, offset, nbytes)
        # No lock: the collector may call this while the same thread is inside `_allocate`.
        self._returned.append((offset, offset + nbytes))

    def _merge(self) -> None:
        while self._returned:
            parts = sorted([*self._free, self._returned.popleft()])
            self._free = [parts[0]]
            for start, stop in parts[1:]:
                if start == self._free[-1][1]:
                    self._free[-1] = (self._free[-1][0], stop)
                else:
                    self._free.append((start, stop))


def _pages(nbytes: int) -> int:
    """Round up to whole pages."""
    return -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE

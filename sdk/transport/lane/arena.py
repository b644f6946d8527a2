"""The arena of a connection: memory that a sender writes a frame's arrays to, reused by each frame.

It is as large as the largest frame allowed, but the kernel backs only the pages that were written.
So it never grows, and needs no second handshake and no copy from a smaller one. Pages of large
frames are released when no further ones follow.
"""

import fcntl
import math
import mmap
import os
import threading
import time
from collections.abc import Callable
from typing import Any, final

import numpy as np

from gradmesh.protos import limits
from gradmesh.protos.dtype import WIRE_TO_NUMPY, wire_dtype
from gradmesh.protos.errors import InvalidRequest
from gradmesh.protos.frame import Array
from gradmesh.protos.lane import ALIGN, aligned, entry
from gradmesh.sdk.transport.lane.sealed import SEALS, sealed_size


@final
class Arena:
    """Memory for the arrays of one frame at a time.

    Args:
        size: Bytes, rounded up to pages.
        shared: Whether another process will map it.

    Attributes:
        used: Bytes up to the end of the last array.
        peak: The most bytes that a frame used since the last `trim`.
    """

    def __init__(self, size: int, *, shared: bool) -> None:
        size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        self.size = size
        self._shared = shared
        self.used = 0
        self.peak = 0
        self._given: dict[int, tuple[Array, int]] = {}
        self.fd = -1
        if not shared:
            self._map = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            return
        self.fd = os.memfd_create("gradmesh-lane", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.fd, size)
            # Reading a mapping that the peer has shrunk would end this process with SIGBUS.
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, SEALS)
            self._map = mmap.mmap(self.fd, size, flags=mmap.MAP_SHARED)
        except BaseException:
            self.close_fd()
            raise

    def close_fd(self) -> None:
        """Close the descriptor that was passed to the peer; the mapping stays."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def begin(self) -> None:
        """Begin a frame: reuse the memory of the last one."""
        if self.used:
            self.peak = max(self.peak, self.used)
            self.used = 0
            self._given.clear()

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return memory of the arena for an array of the frame; heap memory if it does not fit."""
        dtype = np.dtype(dtype)
        start = (self.used + ALIGN - 1) & -ALIGN
        end = start + math.prod(shape) * dtype.itemsize
        if end > self.size:
            return np.empty(shape, dtype)
        self.used = end
        array: Array = np.ndarray(shape, dtype, self._map, start)
        self._given[id(array)] = (array, start)
        return array

    def place(self, array: Array) -> bytes:
        """Return the description of an array; copy it into the arena unless `empty` made it.

        Raises:
            InvalidRequest: The contract has no such type, or it has too many axes.
        """
        number = wire_dtype(array.dtype)
        if self._given and (given := self._given.get(id(array))) is not None:
            return entry(number, array.shape, given[1])
        if array.ndim > limits.MAX_AXES:
            raise InvalidRequest(
                f"an array of {array.ndim} axes cannot be sent; at most {limits.MAX_AXES}",
                axes=array.ndim,
            )
        start = aligned(self.used)
        end = start + array.nbytes
        if end <= self.size:
            # A larger frame is refused by its size later.
            np.ndarray(array.shape, WIRE_TO_NUMPY[number], self._map, start)[...] = array
        self.used = end
        return entry(number, array.shape, start)

    def trim(self) -> None:
        """Release the pages of earlier frames to the system."""
        if self.peak or self.used:
            self._map.madvise(mmap.MADV_REMOVE if self._shared else mmap.MADV_DONTNEED)
            self.peak = 0


def map_peer(fd: int, max_bytes: int) -> mmap.mmap:
    """Map the arena of a peer, read-only.

    Args:
        fd: Its descriptor.
        max_bytes: The largest frame; what is beyond it is not mapped, whatever its size.

    Raises:
        ValueError: It is not memory that can be mapped safely.
    """
    size = min(sealed_size(fd), -(-max_bytes // mmap.PAGESIZE) * mmap.PAGESIZE)
    return mmap.mmap(fd, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)


IDLE_S = 60.0
"""Seconds without large frames after which memory is released."""

BIG_BYTES = 1 << 20
"""Smallest size of a large frame."""


@final
class IdleTrimmer:
    """Calls a function some time after the last large frame; has a thread only while it waits.

    Args:
        trim: Releases memory.
        idle_s: Seconds to wait.
    """

    def __init__(self, trim: Callable[[], object], idle_s: float = IDLE_S) -> None:
        self._trim = trim
        self._idle_s = idle_s
        self._lock = threading.Lock()  # guards _thread
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        self._recorded_at = 0.0

    def record(self) -> None:
        """Record a large frame."""
        self._recorded_at = time.monotonic()
        with self._lock:
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._run, name="lane-trim", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            left_s = self._recorded_at + self._idle_s - time.monotonic()
            if self._closed.wait(max(0.0, left_s)):
                return
            with self._lock:
                if time.monotonic() - self._recorded_at < self._idle_s:
                    continue
                self._thread = None
            self._trim()
            return

    def close(self) -> None:
        """End the thread; may be called twice."""
        self._closed.set()

"""The memory a sender writes a frame's arrays to, reused from frame to frame.

It is as large as the largest frame allowed, but the kernel backs only what was ever written. That
is why nothing grows: no second handshake, no copy from a smaller one.
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

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
# Nobody sends more; a peer that claims more would only cost address space, but why give it.
_MAX_BYTES = 1 << 36


@final
class Arena:
    """Memory for the arrays of one frame at a time.

    Args:
        size: Bytes, rounded up to pages.
        shared: Whether another process will map it.

    Attributes:
        used: Bytes up to the end of the last array.
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
            # A peer that could shrink it would end us with SIGBUS.
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)
            self._map = mmap.mmap(self.fd, size, flags=mmap.MAP_SHARED)
        except BaseException:
            self.close_fd()
            raise

    def close_fd(self) -> None:
        """Close the descriptor that was passed to the peer; the mapping has its own."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def begin(self) -> None:
        """Forget the arrays of the last frame."""
        if self.used:
            self.peak = max(self.peak, self.used)
            self.used = 0
            self._given.clear()

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return memory for an array of the frame, or ordinary memory if it does not fit."""
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
        """Return the array's description, after copying it in if `empty` did not make it.

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
            # Beyond that the frame is refused by its size, and nothing is written.
            np.ndarray(array.shape, WIRE_TO_NUMPY[number], self._map, start)[...] = array
        self.used = end
        return entry(number, array.shape, start)

    def trim(self) -> None:
        """Give memory of former frames back to the system."""
        if self.peak or self.used:
            self._map.madvise(mmap.MADV_REMOVE if self._shared else mmap.MADV_DONTNEED)
            self.peak = 0


def map_peer(fd: int) -> mmap.mmap:
    """Map the arena of a peer to read from.

    Raises:
        ValueError: It could shrink under our hands, or is unreasonably large.
    """
    size = os.fstat(fd).st_size
    if not 0 < size <= _MAX_BYTES:
        raise ValueError(f"the peer's memory has {size} bytes")
    if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK == 0:
        raise ValueError("the peer's memory is not sealed")
    return mmap.mmap(fd, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)


IDLE_S = 60.0
"""How long after the last big frame."""

BIG_BYTES = 1 << 20
"""From here on a frame is big."""


@final
class IdleTrimmer:
    """Calls a function some time after the last big frame; has a thread only while it waits.

    Args:
        trim: Gives memory back.
        idle_s: How long to wait.
    """

    def __init__(self, trim: Callable[[], object], idle_s: float = IDLE_S) -> None:
        self._trim = trim
        self._idle_s = idle_s
        self._lock = threading.Lock()  # guards _thread
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        self._noted_at = 0.0

    def note(self) -> None:
        """Take notice of a big frame."""
        self._noted_at = time.monotonic()
        with self._lock:
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._run, name="lane-trim", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            left_s = self._noted_at + self._idle_s - time.monotonic()
            if self._closed.wait(max(0.0, left_s)):
                return
            with self._lock:
                if time.monotonic() - self._noted_at < self._idle_s:
                    continue
                self._thread = None
            self._trim()
            return

    def close(self) -> None:
        """End the thread; may be called twice."""
        self._closed.set()

"""The memory of a process: the allocator keeps big buffers while it works, and returns them later.

Both use interfaces of glibc; with another library nothing changes.
"""

import ctypes
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import final

# Numbers from glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3

_MMAP_BYTES = 1 << 30
# Older glibc refuses more than this.
_MMAP_BYTES_OLD = 32 << 20
# mallopt takes a C int, so the trim threshold stays just below 2 GiB.
_TRIM_BYTES = (1 << 31) - 1
_PAD_BYTES = 64 << 20


def keep_big_buffers() -> bool:
    """Make malloc keep freed big buffers instead of returning them to the kernel.

    Otherwise a response of 16 MiB page-faults on each call, which costs more than the copy. Call
    once, at process start. The price is a higher resident size after a peak, until `MemoryTrimmer`
    finds the process quiet.

    Returns:
        Whether the allocator accepted the settings; False without glibc, where nothing changes.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    if mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES) != 1:
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES_OLD)
    trimmed: int = mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
    padded: int = mallopt(_M_TOP_PAD, _PAD_BYTES)
    return trimmed == 1 and padded == 1


def release_free_memory() -> None:
    """Return the free memory of malloc to the kernel."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return
    trim(0)


def resident_bytes() -> int:
    """Return the resident size of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


# A process that uses more of a core is at work, and would have to fetch the memory again.
_QUIET_SHARE = 0.25
_GROWTH = 1.05


@final
class MemoryTrimmer:
    """Releases free memory when the process has grown and is quiet; runs a thread.

    Connections, threads and messages of a peak leave free memory behind, also in parts of the
    process that cannot report it.

    Args:
        every_s: How often to look.
        release: Releases memory, replaced in tests.
    """

    def __init__(
        self, every_s: float = 20.0, release: Callable[[], object] = release_free_memory
    ) -> None:
        self._every_s = every_s
        self._release = release
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory-trim", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        left = 0.0  # resident after the last release
        busy_s, at = time.process_time(), time.monotonic()
        while not self._closed.wait(self._every_s):
            before, since = busy_s, at
            busy_s, at = time.process_time(), time.monotonic()
            if busy_s - before < _QUIET_SHARE * (at - since) and resident_bytes() > left * _GROWTH:
                self._release()
                left = resident_bytes()

    def close(self) -> None:
        """End the thread; may be called twice."""
        self._closed.set()
        self._thread.join(5)

"""Looking for bytes at a socket for a moment before sleeping until they come.

To wake a core that sleeps takes longer than a small call. Whoever looks does so in compiled code,
without the interpreter's lock, so that it costs other threads of its process nothing but a core.
"""

import socket
import threading
from typing import Any, Final, final

import numpy as np
from numba import types

from gradmesh.engine.kernels.compile import jit

MAX_SPIN_NS: Final = 300_000
"""Longest that anybody looks before it sleeps."""

# A look lasts this much longer than twice the usual wait.
_SPARE_NS: Final = 50_000
# How much the last wait counts for what is usual, and the longest that counts as such.
_WEIGHT: Final = 0.125
_LONG_NS: Final = 1_000_000
# Whoever does not look for so long while it looks was put off its core: others want it.
_STOPPED_NS: Final = 100_000
# Waits that sleep at once after a look in vain: so many times more than after the last one, and
# never more than the most. Half as many after each look that was not in vain.
_DEARER: Final = 4
_MOST_SKIPPED: Final = 64

_MONOTONIC: Final = 1
_DONTWAIT: Final = int(socket.MSG_DONTWAIT)
# Looks between two glances at the clock.
_BURST: Final = 8

_recv: Any = types.ExternalFunction(
    "recv", types.intp(types.int32, types.uintp, types.uintp, types.int32)
)
_clock_gettime: Any = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.uintp))


@jit
def _look(fd: Any, address: Any, size: Any, nanoseconds: Any, clock: Any) -> Any:
    """Receive into memory without sleeping; return how many bytes came, below 0 for none."""
    begun = last = 0
    while True:
        for _ in range(_BURST):
            got = _recv(fd, address, size, _DONTWAIT)
            if got >= 0:
                return got
        _clock_gettime(_MONOTONIC, clock.ctypes.data)
        now = clock[0] * 1_000_000_000 + clock[1]
        if last == 0:
            begun = last = now
        if now - begun > nanoseconds or now - last > _STOPPED_NS:
            return -1
        last = now


# One thread of a process looks at a time: more would only take cores from those who work.
_looking = threading.Lock()


@final
class SpinWait:
    """Whether to look now, and the looking.

    Looking keeps a core from others, perhaps from the very process that is waited for. So it lasts
    little longer than such a wait usually does, and after looking in vain, because the wait was
    longer or somebody else wanted the core, the next ones sleep at once.

    Args:
        size: Most bytes that are received at once.
    """

    __slots__ = ("_address", "_buffer", "_clock", "_penalty", "_size", "_skip", "_usual_ns")

    def __init__(self, size: int) -> None:
        self._size = size
        self._buffer = np.empty(size, np.uint8)
        self._address = self._buffer.ctypes.data
        self._clock = np.zeros(2, np.int64)
        self._skip = 0
        self._penalty = 1
        self._usual_ns = 50_000.0

    def look(self, fd: int) -> bytes | None:
        """Return what came while looking, nothing at the end of the stream; None to go to sleep."""
        if self._skip:
            self._skip -= 1
            return None
        limit_ns = 2 * self._usual_ns + _SPARE_NS
        if self._usual_ns > MAX_SPIN_NS or not _looking.acquire(blocking=False):
            return None
        try:
            got = _look(fd, self._address, self._size, min(limit_ns, MAX_SPIN_NS), self._clock)
        finally:
            _looking.release()
        if got < 0:
            self._skip = self._penalty = min(_DEARER * self._penalty, _MOST_SKIPPED)
            return None
        self._penalty = max(1, self._penalty // 2)
        return self._buffer[:got].tobytes()

    def note(self, nanoseconds: int) -> None:
        """Take notice of how long a wait was, looked through or slept through."""
        self._usual_ns += _WEIGHT * (min(nanoseconds, _LONG_NS) - self._usual_ns)

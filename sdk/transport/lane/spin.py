"""Spin-wait: poll a socket for a moment before blocking on it.

Waking a sleeping core takes longer than a small call. The polling is compiled and releases the
interpreter's lock, so it costs the other threads of the process nothing but a core.
"""

import socket
import threading
from typing import Any, Final, final

import numpy as np
from numba import types

from gradmesh.engine.kernels.compile import jit

MAX_SPIN_NS: Final = 300_000
"""Longest spin before a wait blocks."""

# The spin budget is twice the usual wait and this.
_SPARE_NS: Final = 50_000
# Weight of the last wait in the moving average, and the longest wait that enters it.
_WEIGHT: Final = 0.125
_LONG_NS: Final = 1_000_000
# A gap this long between two polls means that the thread was preempted: others want the core.
_PREEMPTED_NS: Final = 100_000
# Back-off: after a spin in vain the next waits block at once, this factor more than after the last
# one, up to the maximum. Each successful spin halves that.
_BACKOFF_FACTOR: Final = 4
_MAX_BACKOFF: Final = 64

_MONOTONIC: Final = 1
_DONTWAIT: Final = int(socket.MSG_DONTWAIT)
# Polls between two readings of the clock.
_BURST: Final = 8

_recv: Any = types.ExternalFunction(
    "recv", types.intp(types.int32, types.uintp, types.uintp, types.int32)
)
_clock_gettime: Any = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.uintp))


@jit
def _poll(fd: Any, address: Any, size: Any, nanoseconds: Any, clock: Any) -> Any:
    """Receive into memory without blocking; return the number of bytes, below 0 for none."""
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
        if now - begun > nanoseconds or now - last > _PREEMPTED_NS:
            return -1
        last = now


# One thread of a process spins at a time: more would only take cores from those that work.
_spinning = threading.Lock()


@final
class SpinWait:
    """Decides whether to spin before a wait on one socket, and spins.

    Spinning occupies a core, perhaps the one that the awaited process needs. So the spin budget is
    little more than the usual wait, and after a spin in vain, because the wait was longer or the
    thread was preempted, the next waits block at once (back-off).

    Args:
        size: Most bytes that are received at once.
    """

    __slots__ = ("_address", "_backoff", "_buffer", "_clock", "_size", "_skip", "_usual_ns")

    def __init__(self, size: int) -> None:
        self._size = size
        self._buffer = np.empty(size, np.uint8)
        self._address = self._buffer.ctypes.data
        self._clock = np.zeros(2, np.int64)
        self._skip = 0
        self._backoff = 1
        self._usual_ns = 50_000.0

    def poll(self, fd: int) -> bytes | None:
        """Return what arrived while spinning, b"" at the end of the stream, None to block."""
        if self._skip:
            self._skip -= 1
            return None
        budget_ns = 2 * self._usual_ns + _SPARE_NS
        if self._usual_ns > MAX_SPIN_NS or not _spinning.acquire(blocking=False):
            return None
        try:
            got = _poll(fd, self._address, self._size, min(budget_ns, MAX_SPIN_NS), self._clock)
        finally:
            _spinning.release()
        if got < 0:
            self._skip = self._backoff = min(_BACKOFF_FACTOR * self._backoff, _MAX_BACKOFF)
            return None
        self._backoff = max(1, self._backoff // 2)
        return self._buffer[:got].tobytes()

    def record(self, nanoseconds: int) -> None:
        """Record how long a wait took, spinning or blocked."""
        self._usual_ns += _WEIGHT * (min(nanoseconds, _LONG_NS) - self._usual_ns)

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

LOOK_NS: Final = 200_000
"""How long somebody eager looks before it sleeps."""

# Receives that sleep at once after one that looked in vain; as many as this at most.
_MOST_SKIPPED = 256

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
    until = 0
    while True:
        for _ in range(_BURST):
            got = _recv(fd, address, size, _DONTWAIT)
            if got >= 0:
                return got
        _clock_gettime(_MONOTONIC, clock.ctypes.data)
        now = clock[0] * 1_000_000_000 + clock[1]
        if until == 0:
            until = now + nanoseconds
        elif now > until:
            return -1


# One thread of a process looks at a time: more would only take cores from those who work.
_looking = threading.Lock()


@final
class Eagerness:
    """Whether to look now, and the looking.

    Looking keeps a core from others, perhaps from the very process that is waited for: so after
    looking in vain the next few waits sleep at once, twice as many each time.

    Args:
        size: Most bytes that are received at once.
    """

    __slots__ = ("_address", "_buffer", "_clock", "_penalty", "_size", "_skip")

    def __init__(self, size: int) -> None:
        self._size = size
        self._buffer = np.empty(size, np.uint8)
        self._address = self._buffer.ctypes.data
        self._clock = np.zeros(2, np.int64)
        self._skip = 0
        self._penalty = 1

    def look(self, fd: int) -> bytes | None:
        """Return what came while looking, nothing at the end of the stream; None to go to sleep."""
        if self._skip:
            self._skip -= 1
            return None
        if not _looking.acquire(blocking=False):
            return None
        try:
            got = _look(fd, self._address, self._size, LOOK_NS, self._clock)
        finally:
            _looking.release()
        if got < 0:
            self._skip = self._penalty = min(2 * self._penalty, _MOST_SKIPPED)
            return None
        self._penalty = 1
        return self._buffer[:got].tobytes()

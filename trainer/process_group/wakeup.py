"""Wakes a thread at once, or in a while unless that turns out not to be needed.

The latter costs two small system calls; waking a thread for nothing costs several times what a
collective of a megabyte takes, for it then competes for the interpreter and a core.
"""

import ctypes
import os
import select
import threading
from typing import Final, final

DELAY_S: Final = 0.001
"""How long callers have their chance. Timers much shorter than the kernel's tick cost more."""

_CLOCK_MONOTONIC = 1


class _Timer(ctypes.Structure):
    """The kernel's itimerspec: interval and first expiry, each in seconds and nanoseconds."""

    _fields_ = tuple((name, ctypes.c_long) for name in ("every_s", "every_ns", "in_s", "in_ns"))


_LIBRARY = ctypes.CDLL(None, use_errno=True)
_SOON = ctypes.byref(_Timer(0, 0, 0, round(DELAY_S * 1e9)))
_NEVER = ctypes.byref(_Timer(0, 0, 0, 0))


@final
class Wakeup:
    """What one thread waits for and all others may ring."""

    def __init__(self) -> None:
        self._timer = _LIBRARY.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._timer < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"no timer for a process group: {os.strerror(number)}")
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._timer, select.POLLIN)
        self._poll.register(self._bell, select.POLLIN)
        self._lock = threading.Lock()  # guards the descriptors against use after `close`
        self._is_set = False
        self._is_closed = False

    def ring(self) -> None:
        """Wake the thread now."""
        with self._lock:
            if not self._is_closed:
                os.eventfd_write(self._bell, 1)

    def ring_later(self) -> None:
        """Wake the thread after DELAY_S, unless that is set already."""
        with self._lock:
            if not self._is_set and not self._is_closed:
                self._is_set = True
                _LIBRARY.timerfd_settime(self._timer, 0, _SOON, None)

    def call_off(self) -> None:
        """Do not ring later; a `ring` still counts."""
        if not self._is_set:
            return
        with self._lock:
            if self._is_set and not self._is_closed:
                self._is_set = False
                _LIBRARY.timerfd_settime(self._timer, 0, _NEVER, None)

    def wait(self) -> None:
        """Block until it rings. One thread only."""
        for fd, _ in self._poll.poll():
            with self._lock:
                if fd == self._timer:
                    self._is_set = False
                # Nothing is there if it was called off since.
                try:
                    os.read(fd, 8)
                except BlockingIOError:
                    continue

    def close(self) -> None:
        """Free the descriptors; later rings do nothing."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                os.close(self._timer)
                os.close(self._bell)

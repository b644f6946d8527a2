"""Wake a thread now, or after a delay unless that is cancelled.

To arm and cancel the timer costs two small system calls. A thread woken without need competes for
the interpreter and a core, which costs several times as much as a collective of a megabyte.
"""

import ctypes
import os
import select
import threading
from typing import Final, final

DELAY_S: Final = 0.001
"""How long the queue waits for a caller. Timers much shorter than the kernel's tick cost more."""

_CLOCK_MONOTONIC = 1


class _Timer(ctypes.Structure):
    """The kernel's itimerspec: interval and first expiry, each in seconds and nanoseconds."""

    _fields_ = tuple((name, ctypes.c_long) for name in ("every_s", "every_ns", "in_s", "in_ns"))


_LIBRARY = ctypes.CDLL(None, use_errno=True)
_DELAY = ctypes.byref(_Timer(0, 0, 0, round(DELAY_S * 1e9)))
_DISARM = ctypes.byref(_Timer(0, 0, 0, 0))


@final
class Wakeup:
    """Let one thread wait until another one wakes it."""

    def __init__(self) -> None:
        self._timer = _LIBRARY.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._timer < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"no timer for a process group: {os.strerror(number)}")
        self._event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._timer, select.POLLIN)
        self._poll.register(self._event_fd, select.POLLIN)
        self._lock = threading.Lock()  # guards the descriptors against use after `close`
        self._is_armed = False
        self._is_closed = False

    def wake(self) -> None:
        """Wake the thread now."""
        with self._lock:
            if not self._is_closed:
                os.eventfd_write(self._event_fd, 1)

    def wake_later(self) -> None:
        """Wake the thread after DELAY_S, unless the timer is armed already."""
        with self._lock:
            if not self._is_armed and not self._is_closed:
                self._is_armed = True
                _LIBRARY.timerfd_settime(self._timer, 0, _DELAY, None)

    def cancel(self) -> None:
        """Cancel `wake_later`; a `wake` still takes effect."""
        if not self._is_armed:
            return
        with self._lock:
            if self._is_armed and not self._is_closed:
                self._is_armed = False
                _LIBRARY.timerfd_settime(self._timer, 0, _DISARM, None)

    def wait(self) -> None:
        """Block until woken. One thread only."""
        for fd, _ in self._poll.poll():
            with self._lock:
                if fd == self._timer:
                    self._is_armed = False
                # Nothing to read if the timer was cancelled since.
                try:
                    os.read(fd, 8)
                except BlockingIOError:
                    continue

    def close(self) -> None:
        """Free the descriptors; later wake-ups do nothing."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                os.close(self._timer)
                os.close(self._event_fd)

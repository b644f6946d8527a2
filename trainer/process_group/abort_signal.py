"""The error that ends a group: only the first one is kept, and it wakes poll loops."""

import os
import threading
from typing import final


@final
class AbortSignal:
    """Hold the first error that is set; the descriptor turns readable at that moment."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards _error and _fd
        self._error: Exception | None = None
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    @property
    def error(self) -> Exception | None:
        """The error that ended the group, None while it is open."""
        return self._error

    def fileno(self) -> int:
        """Return the descriptor to poll for reading."""
        return self._fd

    def set(self, error: Exception) -> None:
        """Keep `error` unless there is one already, and wake the poll loop."""
        with self._lock:
            if self._error is None:
                self._error = error
                if self._fd >= 0:
                    os.eventfd_write(self._fd, 1)

    def raise_if_set(self) -> None:
        """Raise the error if one is set."""
        if self._error is not None:
            raise self._error.with_traceback(None)

    def close(self) -> None:
        """Free the descriptor; the error stays."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

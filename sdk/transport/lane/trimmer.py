"""Memory of big frames, given back to the system when none follow for long."""

import threading
import time
from collections.abc import Callable
from typing import final

IDLE_S = 60.0
"""How long after the last big frame."""

BIG_BYTES = 1 << 20
"""From here on a frame is big."""


@final
class Trimmer:
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

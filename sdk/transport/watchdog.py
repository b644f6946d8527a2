"""A watchdog: ends what is late where the thread that waits for it cannot set a time limit."""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar, final

T = TypeVar("T")


@final
class Watchdog(Generic[T]):
    """Ends the things whose deadline passes; runs a thread from the first one on.

    Args:
        expire: Ends one; must not block.
        name: Name of the thread.
    """

    def __init__(self, expire: Callable[[T], object], name: str) -> None:
        self._expire = expire
        self._name = name
        # Guards changes of _wake and _closed; _until has one writer per thing and needs no lock.
        self._changed = threading.Condition()
        self._until: dict[T, float] = {}
        # When the thread wakes next. Neither things that end nor later deadlines notify it, so it
        # wakes once per timeout, not once per call.
        self._wake = float("inf")
        self._thread: threading.Thread | None = None
        self._closed = False

    def begin(self, watched: T, deadline: float) -> None:
        """End it at the deadline, a point of `time.monotonic`, unless `end` comes first."""
        self._until[watched] = deadline
        if deadline < self._wake:
            with self._changed:
                self._wake = min(self._wake, deadline)
                if self._thread is None and not self._closed:
                    self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                    self._thread.start()
                self._changed.notify_all()

    def end(self, watched: T) -> None:
        """Stop watching it."""
        self._until.pop(watched, None)

    def _run(self) -> None:
        while self._wait():
            # Reset before reading _until: one that begins meanwhile is either read or notifies.
            self._wake = float("inf")
            now = time.monotonic()
            waiting = list(self._until.items())
            for watched, deadline in waiting:
                # Unless it has ended meanwhile, and perhaps begun again.
                if deadline <= now and self._until.get(watched) == deadline:
                    self._expire(watched)
            with self._changed:
                later = [deadline for _, deadline in waiting if deadline > now]
                self._wake = min([self._wake, *later])

    def _wait(self) -> bool:
        """Wait until the next deadline; return False when closed."""
        with self._changed:
            while not self._closed:
                left_s = self._wake - time.monotonic()
                if left_s <= 0:
                    return True
                self._changed.wait(min(left_s, threading.TIMEOUT_MAX))
        return False

    def close(self) -> None:
        """End the thread; may be called twice."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

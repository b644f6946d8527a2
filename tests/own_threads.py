"""The threads that a test has started, without those of other tests in the process.

Fixtures of a session keep agents in the process. Their threads start others at any time, for a
renewed lease or for a lane that a worker opens. A test must not count these.
"""

import threading
from typing import Any

_start = threading.Thread.start


def _start_and_remember(thread: threading.Thread) -> None:
    starter = threading.current_thread()
    if starter is not threading.main_thread():
        _set_origin(thread, _origin(starter))
    _start(thread)


def _set_origin(thread: Any, origin: threading.Thread) -> None:
    thread._origin_in_tests = origin


def _origin(thread: Any) -> threading.Thread:
    """Return the ancestor that the main thread started, perhaps the thread itself."""
    return getattr(thread, "_origin_in_tests", thread)


def remember_origins() -> None:
    """Record for every thread from now on which thread started it."""
    threading.Thread.start = _start_and_remember  # type: ignore[method-assign]


class OwnThreads:
    """The threads that the main thread starts from now on, and those that they start."""

    def __init__(self) -> None:
        alive = threading.enumerate()
        self._foreign = {*alive, *map(_origin, alive)}

    def alive(self) -> list[threading.Thread]:
        """Return those that have not ended."""
        return [t for t in threading.enumerate() if _origin(t) not in self._foreign]

    def names(self) -> list[str]:
        """Return the names of those that have not ended."""
        return sorted(thread.name for thread in self.alive())

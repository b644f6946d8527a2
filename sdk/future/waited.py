"""Sources that one shared thread waits for, where nobody else does."""

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar, final

T = TypeVar("T")


@final
class Waited(Generic[T]):
    """Something under way that a function waits for.

    Args:
        finish: Waits for it; called once. It has a deadline of its own.
        resolver: Helps out with callbacks.
    """

    __slots__ = ("_resolver", "finish")

    def __init__(self, finish: Callable[[], T], resolver: "Resolver") -> None:
        self.finish = finish
        self._resolver = resolver

    def notify(self, ready: Callable[[], None]) -> None:
        """Have the shared thread wait."""
        self._resolver.put(ready)

    def abandon(self) -> None:
        """Let go; what was under way ends by itself."""


@final
class Resolver:
    """One thread that waits for what nobody else waits for, one after the other."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards _thread and _closed
        self._thread: threading.Thread | None = None
        self._closed = False

    def put(self, wait: Callable[[], None]) -> None:
        """Call a function that waits, soon; the thread starts with the first one."""
        with self._lock:
            if not self._closed:
                self._queue.put(wait)
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="futures", daemon=True)
                    self._thread.start()
                return
        # Its connection is closed, so this ends at once.
        wait()

    def _run(self) -> None:
        while (wait := self._queue.get()) is not None:
            wait()

    def close(self, timeout_s: float = 5.0) -> None:
        """End the thread once all it has is over; may be called twice."""
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            if thread is not threading.current_thread():
                thread.join(timeout_s)

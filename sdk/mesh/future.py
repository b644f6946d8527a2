"""Something that is under way, and whoever wants to know when it is done.

There is no thread for each call. The thread that asks for the result waits for it; only callbacks,
`done` and short waits need help, and they share one thread for the whole mesh.
"""

import logging
import queue
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast, final

from gradmesh.protos.errors import DeadlineExceeded

_log = logging.getLogger(__name__)

T = TypeVar("T")


@final
class Future(Generic[T]):
    """The result of a call that is under way.

    Args:
        finish: Waits for it; called once. It has a deadline of its own.
        resolver: Helps out with callbacks.
    """

    def __init__(self, finish: Callable[[], T], resolver: "Resolver") -> None:
        self._finish: Callable[[], T] | None = finish
        self._resolver = resolver
        self._turn = threading.Lock()  # held by the one that waits in _finish
        self._over = threading.Event()
        self._lock = threading.Lock()  # guards _callbacks and _queued
        self._callbacks: list[Callable[[Future[T]], object]] = []
        self._queued = False
        self._value: T | None = None
        self._error: BaseException | None = None

    def result(self, timeout_s: float | None = None) -> T:
        """Wait for the result.

        Args:
            timeout_s: How long; until the deadline of the call by default.

        Raises:
            DeadlineExceeded: It is not there yet; ask again.
            GradmeshError: What went wrong with the call.
        """
        error = self.exception(timeout_s)
        if error is not None:
            raise error
        return cast(T, self._value)

    def exception(self, timeout_s: float | None = None) -> BaseException | None:
        """Wait for the end; return what went wrong, or None.

        Raises:
            DeadlineExceeded: The end is not there yet; ask again.
        """
        if timeout_s is None:
            self.resolve()
        elif not self._over.is_set():
            self._ask_for_help()
            if not self._over.wait(timeout_s):
                raise DeadlineExceeded(f"no answer within {timeout_s} s; it is still under way")
        return self._error

    def done(self) -> bool:
        """Tell whether `result` returns or raises at once."""
        if not self._over.is_set():
            self._ask_for_help()
        return self._over.is_set()

    def add_done_callback(self, function: "Callable[[Future[T]], object]") -> None:
        """Call `function(self)` at the end, on another thread; at once if the end has come."""
        with self._lock:
            if not self._over.is_set():
                self._callbacks.append(function)
                function = _nothing
        function(self)
        if not self._over.is_set():
            self._ask_for_help()

    def resolve(self) -> None:
        """Wait for the end."""
        with self._turn:
            if self._finish is None:
                return
            try:
                self._value = self._finish()
            except BaseException as error:
                self._error = error
            self._finish = None
        with self._lock:
            self._over.set()
            callbacks, self._callbacks = self._callbacks, []
        for function in callbacks:
            try:
                function(self)
            except Exception:
                # Nobody else could hear of it, and the other callbacks have done no wrong.
                _log.exception("a callback failed")

    def _ask_for_help(self) -> None:
        with self._lock:
            first, self._queued = not self._queued, True
        if first:
            self._resolver.put(self)

    def __repr__(self) -> str:
        state = "under way" if not self._over.is_set() else "failed" if self._error else "done"
        return f"Future({state})"


@final
class Resolver:
    """One thread that waits for the futures nobody else waits for, one after the other."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Future[Any] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards _thread and _closed
        self._thread: threading.Thread | None = None
        self._closed = False

    def put(self, future: Future[Any]) -> None:
        """Wait for a future soon; the thread starts with the first one."""
        with self._lock:
            if not self._closed:
                self._queue.put(future)
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="futures", daemon=True)
                    self._thread.start()
                return
        # Its connection is closed, so this ends at once.
        future.resolve()

    def _run(self) -> None:
        while (future := self._queue.get()) is not None:
            future.resolve()

    def close(self, timeout_s: float = 5.0) -> None:
        """End the thread once the futures it has are over; may be called twice."""
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            if thread is not threading.current_thread():
                thread.join(timeout_s)


def _nothing(future: Any) -> None:
    """Do nothing: the callback waits for its turn."""

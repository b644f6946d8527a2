"""A thread pool that cannot deadlock on tasks that wait for each other.

A pool of fixed size deadlocks when its tasks wait for tasks that have no thread. Here a task that
others wait for gets a thread at once; only tasks that no task waits for are queued. Idle threads
end after a while. The thread that was busy last is woken first, so that threads left over from a
burst stay idle and end under steady load.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import TypeAlias, final

from gradmesh.protos.errors import Overloaded

_log = logging.getLogger(__name__)

Task: TypeAlias = Callable[[], object]


@final
class ThreadPool:
    """Runs tasks.

    Args:
        name: Name of the threads.
        max_queued: How many queued tasks run at once.
        most: Maximum number of threads.
        idle_s: How long a thread waits for another task before it ends.
    """

    def __init__(
        self, name: str, *, max_queued: int = 16, most: int = 1024, idle_s: float = 5.0
    ) -> None:
        self._name = name
        self._max_queued = max_queued
        self._most = most
        self._idle_s = idle_s
        # Guards all below. Reentrant: the garbage collector may call `run` while it is held.
        self._lock = threading.RLock()
        self._ended = threading.Condition(self._lock)
        self._urgent: deque[Task] = deque()
        self._queue: deque[Task] = deque()
        self._queued_running = 0  # tasks from the queue that run now
        self._threads = 0
        self._idle: list[threading.Condition] = []  # of idle threads; the last is woken first
        self._closed = False

    def run(self, task: Task) -> None:
        """Run a task soon, on a thread of its own.

        Raises:
            Overloaded: There are too many threads already.
        """
        with self._lock:
            if not self._idle and self._threads >= self._most:
                raise Overloaded(
                    f"{self._most} calls run at once already; wait for some, or start more workers",
                    threads=self._most,
                )
            self._urgent.append(task)
            self._wake()

    def enqueue(self, task: Task) -> None:
        """Queue a task; it runs when fewer than `max_queued` queued tasks run."""
        with self._lock:
            self._queue.append(task)
            if self._queued_running < self._max_queued:
                self._wake()

    def _wake(self) -> None:
        """Wake or start one more thread; the lock is held."""
        if self._idle:
            self._idle.pop().notify()
        elif self._threads < self._most:
            self._threads += 1
            threading.Thread(target=self._work, name=self._name, daemon=True).start()

    def _next(self) -> tuple[Task, bool] | None:
        """Return the next task and whether it was queued, or None; the lock is held."""
        if self._urgent:
            return self._urgent.popleft(), False
        if self._queue and self._queued_running < self._max_queued:
            self._queued_running += 1
            return self._queue.popleft(), True
        return None

    def _woken(self, mine: threading.Condition) -> bool:
        """Wait; return False if the wait timed out."""
        self._idle.append(mine)
        if mine.wait(self._idle_s) or mine not in self._idle:
            return True
        self._idle.remove(mine)
        return False

    def _work(self) -> None:
        mine = threading.Condition(self._lock)
        while True:
            with self._lock:
                found = self._next()
                while found is None:
                    woken = not self._closed and self._woken(mine)
                    found = self._next()
                    if found is None and not woken:
                        self._threads -= 1
                        self._ended.notify_all()
                        return
            task, stood = found
            try:
                task()
            except Exception:
                _log.exception("a task failed")
            del task, found  # an idle thread must not keep its last task alive
            if stood:
                with self._lock:
                    self._queued_running -= 1

    def counts(self) -> tuple[int, int]:
        """Return the number of threads, and how many of them are idle."""
        with self._lock:
            return self._threads, len(self._idle)

    def close(self, timeout_s: float = 2.0) -> None:
        """Stop the threads after their tasks; wait for them until the timeout."""
        with self._lock:
            self._closed = True
            while self._idle:
                self._idle.pop().notify()
            self._ended.wait_for(lambda: self._threads == 0, timeout_s)

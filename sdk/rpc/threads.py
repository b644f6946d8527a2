"""Threads for what must not wait behind something that waits for it.

A pool of fixed size deadlocks when its tasks wait for tasks that have no thread. Here a task that
others wait for gets a thread at once, and only tasks that nobody waits for stand in line. Threads
that had nothing to do for a while end: the one that was busy last is woken first, so that those a
burst has left over stay idle however steady the calls after it are.
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
        name: Of the threads.
        patient: How many tasks that may stand in line run at once.
        most: How many threads there may be in all.
        idle_s: How long a thread waits for another task before it ends.
    """

    def __init__(
        self, name: str, *, patient: int = 16, most: int = 1024, idle_s: float = 5.0
    ) -> None:
        self._name = name
        self._patient = patient
        self._most = most
        self._idle_s = idle_s
        # Guards all below. Reentrant: the garbage collector may call us in the middle of something.
        self._lock = threading.RLock()
        self._ended = threading.Condition(self._lock)
        self._urgent: deque[Task] = deque()
        self._line: deque[Task] = deque()
        self._standing = 0  # tasks from the line that run now
        self._threads = 0
        self._idle: list[threading.Condition] = []  # of threads that wait; the last is woken first
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

    def stand_in_line(self, task: Task) -> None:
        """Run a task when fewer than `patient` of its kind run."""
        with self._lock:
            self._line.append(task)
            if self._standing < self._patient:
                self._wake()

    def _wake(self) -> None:
        """Have one more thread look for a task; the lock is held."""
        if self._idle:
            self._idle.pop().notify()
        elif self._threads < self._most:
            self._threads += 1
            threading.Thread(target=self._work, name=self._name, daemon=True).start()

    def _next(self) -> tuple[Task, bool] | None:
        """Return a task and whether it stood in line, if there is one; the lock is held."""
        if self._urgent:
            return self._urgent.popleft(), False
        if self._line and self._standing < self._patient:
            self._standing += 1
            return self._line.popleft(), True
        return None

    def _woken(self, mine: threading.Condition) -> bool:
        """Wait; return whether there may be a task, and not that it took too long."""
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
            del task, found  # what they hold is not ours to keep while we wait
            if stood:
                with self._lock:
                    self._standing -= 1

    def figures(self) -> tuple[int, int]:
        """Return how many threads there are, and how many of them have nothing to do."""
        with self._lock:
            return self._threads, len(self._idle)

    def close(self, timeout_s: float = 2.0) -> None:
        """Let the threads end when their tasks have; wait for them a little."""
        with self._lock:
            self._closed = True
            while self._idle:
                self._idle.pop().notify()
            self._ended.wait_for(lambda: self._threads == 0, timeout_s)

"""Threads for what must not wait behind something that waits for it.

A pool of fixed size deadlocks when its tasks wait for tasks that have no thread. Here a task that
others wait for gets a thread at once, and only tasks that nobody waits for stand in line. Threads
that had nothing to do for a while end.
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
class Threads:
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
        self._changed = threading.Condition()  # guards all below
        self._urgent: deque[Task] = deque()
        self._line: deque[Task] = deque()
        self._standing = 0  # tasks from the line that run now
        self._threads = 0
        self._idle = 0
        self._closed = False

    def run(self, task: Task) -> None:
        """Run a task soon, on a thread of its own.

        Raises:
            Overloaded: There are too many threads already.
        """
        with self._changed:
            if len(self._urgent) >= self._idle and self._threads >= self._most:
                raise Overloaded(
                    f"{self._most} calls run at once already; wait for some, or start more workers",
                    threads=self._most,
                )
            self._urgent.append(task)
            self._wake()

    def stand_in_line(self, task: Task) -> None:
        """Run a task when fewer than `patient` of its kind run."""
        with self._changed:
            self._line.append(task)
            if self._standing < self._patient:
                self._wake()

    def _wake(self) -> None:
        """Have one more thread look for a task; the lock is held."""
        if self._idle >= len(self._urgent) + bool(self._line):
            self._changed.notify()
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

    def _work(self) -> None:
        while True:
            with self._changed:
                found = self._next()
                while found is None:
                    self._idle += 1
                    woken = not self._closed and self._changed.wait(self._idle_s)
                    self._idle -= 1
                    found = self._next()
                    if found is None and not woken:
                        self._threads -= 1
                        self._changed.notify_all()
                        return
            task, stood = found
            try:
                task()
            except Exception:
                _log.exception("a task failed")
            del task, found  # what they hold is not ours to keep while we wait
            if stood:
                with self._changed:
                    self._standing -= 1

    def figures(self) -> tuple[int, int]:
        """Return how many threads there are, and how many of them have nothing to do."""
        with self._changed:
            return self._threads, self._idle

    def close(self, timeout_s: float = 2.0) -> None:
        """Let the threads end when their tasks have; wait for them a little."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._threads == 0, timeout_s)

"""Runs collectives one after another, in the order of the calls.

A thread of the queue runs them, so that communication overlaps with the caller's compute. But
handing work to a thread costs more than a small collective takes: so a collective may begin at
its call, and whoever waits without a limit runs what is in line. One at a time, whoever it is.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, TypeAlias, final

from gradmesh.trainer.errors import CollectiveTimeout
from gradmesh.trainer.process_group.latch import Latch
from gradmesh.trainer.process_group.work import PendingWork, Work

_Run: TypeAlias = Callable[[], None]


@final
class _Job(NamedTuple):
    work: PendingWork
    run: _Run
    has_begun: bool


@final
class WorkQueue:
    """Jobs in order; once the latch has tripped, every job ends with its error.

    Args:
        name: The thread's name.
        latch: Holds the group's end; a job that fails trips it.
        on_end: Called once, on the queue's thread, when the latch has tripped.
    """

    def __init__(self, name: str, latch: Latch, on_end: Callable[[], None]) -> None:
        self._latch = latch
        self._on_end = on_end
        self._lock = threading.Lock()  # guards _jobs and _waiting_to_begin
        self._jobs: deque[_Job] = deque()
        self._waiting_to_begin = 0
        self._turn = threading.Lock()  # held by whoever runs jobs
        self._news = threading.Condition()  # a work or a turn has ended; guards _listeners
        self._listeners = 0
        self._calls: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, name: str, run: _Run, begin: Callable[[], _Run | None] | None = None) -> Work:
        """Append a job; its work ends when the job returns or raises.

        Args:
            name: The collective in words.
            run: The job.
            begin: Called at once if nothing else is under way. If it returns what is left to
                do, that takes the place of `run`, and the thread need not hurry.
        """
        work = PendingWork(name, self)
        with self._lock:
            self._latch.check()
            rest = None
            if begin is not None and not self._waiting_to_begin:
                rest = self._begin(begin)
            self._jobs.append(_Job(work, rest or run, rest is not None))
            if rest is None:
                self._waiting_to_begin += 1
        if rest is None:
            self._calls.put(None)
        return work

    def end_of(self, work: PendingWork, timeout_s: float | None) -> None:
        """Return once the work has ended: run what is in line, or wait for whoever does."""
        if timeout_s is not None:
            self._listen(work, timeout_s)
            return
        while not work.has_ended():
            if self._turn.acquire(blocking=False):
                try:
                    while not work.has_ended() and self._run_next():
                        pass
                finally:
                    self._turn.release()
                    self._tell()
            else:
                with self._news:
                    self._listeners += 1
                    # Told when the turn ends: if it has ended already, nobody would tell us.
                    if not work.has_ended() and self._turn.locked():
                        self._news.wait()
                    self._listeners -= 1

    def hurry(self) -> None:
        """Let the thread run what is in line."""
        self._calls.put(None)

    def end(self, error: Exception) -> None:
        """Trip the latch: jobs under way and waiting end with its error. Does not block."""
        self._latch.trip(error)
        self.hurry()

    def join(self, timeout_s: float) -> None:
        """Wait until the thread has gone, after `end`."""
        self._thread.join(timeout_s)

    def _begin(self, begin: Callable[[], _Run | None]) -> _Run | None:
        if not self._turn.acquire(blocking=False):
            return None
        try:
            return begin()
        except Exception as error:
            self._latch.trip(error)
            self.hurry()
            raise
        finally:
            self._turn.release()
            self._tell()

    def _listen(self, work: PendingWork, timeout_s: float) -> None:
        """Wait for a work that somebody else runs, no longer than `timeout_s`."""
        self.hurry()
        with self._news:
            self._listeners += 1
            has_ended = self._news.wait_for(work.has_ended, timeout_s)
            self._listeners -= 1
        if not has_ended:
            raise CollectiveTimeout(
                f"{work.name} still runs after {timeout_s} s; wait longer, or abort the group"
            )

    def _tell(self) -> None:
        if self._listeners:
            with self._news:
                self._news.notify_all()

    def _run(self) -> None:
        while self._latch.error is None:
            self._calls.get()
            with self._turn:
                while self._latch.error is None and self._run_next():
                    pass
            self._tell()
        with self._turn:
            # Waiters first: telling the peers may take a moment.
            self._drain()
            self._on_end()

    def _run_next(self) -> bool:
        """Run the first job in line; tell whether there was one."""
        with self._lock:
            if not self._jobs:
                return False
            work, run, has_begun = self._jobs.popleft()
        try:
            self._latch.check()
            run()
        except Exception as error:
            self._latch.trip(error)
            work.finish(self._latch.error)
            self.hurry()
        else:
            work.finish()
        if not has_begun:
            with self._lock:
                self._waiting_to_begin -= 1
        self._tell()
        return True

    def _drain(self) -> None:
        # Under the lock no submit can pass its check and put afterwards.
        with self._lock:
            while self._jobs:
                self._jobs.popleft().work.finish(self._latch.error)
        self._tell()

"""Runs collectives one after another, in the order of the calls.

A thread of the queue runs them, so that communication overlaps with the caller's compute. But
handing work to a thread costs more than a small collective takes: so a collective may begin at
its call, whoever waits without a limit runs what is in line, and the thread only comes when nobody
has done so for a moment. One at a time, whoever it is.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TypeAlias, final

from gradmesh.trainer.errors import CollectiveTimeout
from gradmesh.trainer.process_group.abort_signal import AbortSignal
from gradmesh.trainer.process_group.wakeup import Wakeup
from gradmesh.trainer.process_group.work import PendingWork, Work

_Run: TypeAlias = Callable[[float], None]
"""Does a job, or what is left of it, by a deadline."""


@final
class WorkQueue:
    """Jobs in order; once the latch has tripped, every job ends with its error.

    Args:
        name: The thread's name.
        timeout_s: Longest time one job may take, from when its turn has come.
        latch: Holds the group's end; a job that fails trips it.
        on_end: Called once, on the queue's thread, when the latch has tripped.
    """

    def __init__(
        self, name: str, timeout_s: float, latch: AbortSignal, on_end: Callable[[], None]
    ) -> None:
        self._timeout_s = timeout_s
        self._latch = latch
        self._on_end = on_end
        self._lock = threading.Lock()  # guards all below but _alarm
        self._news = threading.Condition(self._lock)  # a work or a turn has ended
        self._listeners = 0
        self._jobs: deque[tuple[PendingWork, _Run, bool]] = deque()  # last: whether it has begun
        self._waiting_to_begin = 0
        self._is_running = False  # a flag, since Lock.locked() lags behind the lock
        self._alarm = Wakeup()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, name: str, run: _Run, begin: Callable[[], _Run | None] | None = None) -> Work:
        """Append a job; its work ends when the job returns or raises.

        Args:
            name: The collective in words.
            run: The job.
            begin: Called at once if nothing else is under way. If it returns what is left to
                do, that takes the place of `run`, and no thread is needed.
        """
        work = PendingWork(name, self)
        with self._lock:
            self._latch.check()
            if begin is not None and not self._waiting_to_begin and not self._is_running:
                rest = self._begin(begin)
                if rest is not None:
                    self._jobs.append((work, rest, True))
                    return work
            self._jobs.append((work, run, False))
            self._waiting_to_begin += 1
            self._alarm.ring_later()
        return work

    def end_of(self, work: PendingWork, timeout_s: float | None) -> None:
        """Return once the work has ended: run what is in line, or wait for whoever does."""
        if timeout_s is not None:
            self._give_up_after(work, timeout_s)
            return
        while not work.has_ended():
            with self._lock:
                if self._is_running:
                    self._listen(None)
                    continue
                self._is_running = True
            self._run_until(work.has_ended)

    def hurry(self) -> None:
        """Let the thread run what is in line, now."""
        self._alarm.ring()

    def end(self, error: Exception) -> None:
        """Trip the latch: jobs under way and waiting end with its error. Does not block."""
        self._latch.trip(error)
        self.hurry()

    def join(self, timeout_s: float) -> None:
        """Wait until the thread has gone, after `end`."""
        self._thread.join(timeout_s)

    def _begin(self, begin: Callable[[], _Run | None]) -> _Run | None:
        try:
            return begin()
        except Exception as error:
            self._latch.trip(error)
            self.hurry()
            raise

    def _give_up_after(self, work: PendingWork, timeout_s: float) -> None:
        """Wait for a work that somebody else runs, no longer than `timeout_s`."""
        self.hurry()
        deadline = time.monotonic() + timeout_s
        with self._lock:
            while not work.has_ended():
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise CollectiveTimeout(
                        f"{work.name} still runs after {timeout_s} s; wait longer, or abort"
                        " the group"
                    )
                self._listen(left_s)

    def _listen(self, timeout_s: float | None) -> None:
        self._listeners += 1
        self._news.wait(timeout_s)
        self._listeners -= 1

    def _tell(self) -> None:
        if self._listeners:
            self._news.notify_all()

    def _run(self) -> None:
        while self._latch.error is None:
            self._alarm.wait()
            self._take_turn()
            self._run_until(lambda: self._latch.error is not None)
        self._take_turn()
        # Waiters first: telling the peers may take a moment.
        with self._lock:
            while self._jobs:
                self._jobs.popleft()[0].finish(self._latch.error)
            self._tell()
        self._alarm.close()
        self._on_end()

    def _take_turn(self) -> None:
        with self._lock:
            while self._is_running:
                self._listen(None)
            self._is_running = True

    def _run_until(self, is_enough: Callable[[], bool]) -> None:
        """Run what is in line, and give the turn back."""
        while True:
            with self._lock:
                self._tell()
                if is_enough() or not self._jobs:
                    self._is_running = False
                    return
                work, run, has_begun = self._jobs.popleft()
                if not self._jobs:
                    self._alarm.call_off()
            try:
                self._latch.check()
                run(time.monotonic() + self._timeout_s)
            except Exception as error:
                self._latch.trip(error)
                work.finish(self._latch.error)
                self.hurry()
            else:
                work.finish()
            if not has_begun:
                with self._lock:
                    self._waiting_to_begin -= 1

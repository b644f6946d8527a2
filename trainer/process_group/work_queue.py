"""Run collectives one after another, in the order of the calls.

The queue's thread runs them, so that communication overlaps with the caller's compute. But handing
work to a thread costs more than a small collective takes. So a collective may begin in its call, a
thread that waits without a timeout runs the queued jobs itself, and the queue's thread only starts
if no caller has done so for a short time. Only one thread runs jobs at a time.
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
"""Runs a job, or the rest of it, until a deadline."""


@final
class WorkQueue:
    """Run jobs in order; once the abort signal is set, every job ends with its error.

    Args:
        name: The thread's name.
        timeout_s: Longest time one job may take from its start.
        abort_signal: Holds the error that ends the group; a job that fails sets it.
        on_end: Called once, on the queue's thread, when the abort signal is set.
    """

    def __init__(
        self, name: str, timeout_s: float, abort_signal: AbortSignal, on_end: Callable[[], None]
    ) -> None:
        self._timeout_s = timeout_s
        self._abort_signal = abort_signal
        self._on_end = on_end
        self._lock = threading.Lock()  # guards all fields below except _wakeup
        self._changed = threading.Condition(self._lock)  # a work has finished or a thread stopped
        self._waiters = 0
        self._jobs: deque[tuple[PendingWork, _Run, bool]] = deque()  # last: whether it has begun
        self._waiting_to_begin = 0
        self._is_running = False  # a flag, since Lock.locked() lags behind the lock
        self._wakeup = Wakeup()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, name: str, run: _Run, begin: Callable[[], _Run | None] | None = None) -> Work:
        """Append a job; its work finishes when the job returns or raises.

        Args:
            name: The collective in words.
            run: The job.
            begin: Called at once if nothing else is under way. If it returns the rest of the
                job, that replaces `run`, and no thread is needed.
        """
        work = PendingWork(name, self)
        with self._lock:
            self._abort_signal.raise_if_set()
            if begin is not None and not self._waiting_to_begin and not self._is_running:
                rest = self._begin(begin)
                if rest is not None:
                    self._jobs.append((work, rest, True))
                    return work
            self._jobs.append((work, run, False))
            self._waiting_to_begin += 1
            self._wakeup.wake_later()
        return work

    def wait_for(self, work: PendingWork, timeout_s: float | None) -> None:
        """Run the queued jobs until the work has finished, or wait for the thread that does."""
        if timeout_s is not None:
            self._wait_with_timeout(work, timeout_s)
            return
        while not work.is_finished():
            with self._lock:
                if self._is_running:
                    self._wait_for_change(None)
                    continue
                self._is_running = True
            self._run_until(work.is_finished)

    def ensure_progress(self) -> None:
        """Let the queue's thread run the queued jobs now."""
        self._wakeup.wake()

    def abort(self, error: Exception) -> None:
        """Set the abort signal: all jobs end with its error. Does not block."""
        self._abort_signal.set(error)
        self.ensure_progress()

    def join(self, timeout_s: float) -> None:
        """Wait until the thread has ended, after `abort`."""
        self._thread.join(timeout_s)

    def _begin(self, begin: Callable[[], _Run | None]) -> _Run | None:
        try:
            return begin()
        except Exception as error:
            self._abort_signal.set(error)
            self.ensure_progress()
            raise

    def _wait_with_timeout(self, work: PendingWork, timeout_s: float) -> None:
        """Wait at most `timeout_s` for a work that another thread runs."""
        self.ensure_progress()
        deadline = time.monotonic() + timeout_s
        with self._lock:
            while not work.is_finished():
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise CollectiveTimeout(
                        f"{work.name} still runs after {timeout_s} s; wait longer, or abort"
                        " the group"
                    )
                self._wait_for_change(left_s)

    def _wait_for_change(self, timeout_s: float | None) -> None:
        self._waiters += 1
        self._changed.wait(timeout_s)
        self._waiters -= 1

    def _notify(self) -> None:
        if self._waiters:
            self._changed.notify_all()

    def _run(self) -> None:
        while self._abort_signal.error is None:
            self._wakeup.wait()
            self._acquire_turn()
            self._run_until(lambda: self._abort_signal.error is not None)
        self._acquire_turn()
        # Waiters first: notifying the peers may take a while.
        with self._lock:
            while self._jobs:
                self._jobs.popleft()[0].finish(self._abort_signal.error)
            self._notify()
        self._wakeup.close()
        self._on_end()

    def _acquire_turn(self) -> None:
        with self._lock:
            while self._is_running:
                self._wait_for_change(None)
            self._is_running = True

    def _run_until(self, is_enough: Callable[[], bool]) -> None:
        """Run queued jobs until `is_enough`, then release the turn."""
        while True:
            with self._lock:
                self._notify()
                if is_enough() or not self._jobs:
                    self._is_running = False
                    return
                work, run, has_begun = self._jobs.popleft()
                if not self._jobs:
                    self._wakeup.cancel()
            try:
                self._abort_signal.raise_if_set()
                run(time.monotonic() + self._timeout_s)
            except Exception as error:
                self._abort_signal.set(error)
                work.finish(self._abort_signal.error)
                self.ensure_progress()
            else:
                work.finish()
            if not has_begun:
                with self._lock:
                    self._waiting_to_begin -= 1

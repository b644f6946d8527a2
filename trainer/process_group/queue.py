"""Runs collectives one after another on a thread of their own, in the order of the calls.

One thread for each group keeps the order that ranks must share, lets communication overlap
with the caller's compute, and is the only user of the group's sockets.
"""

import queue
import threading
from collections.abc import Callable
from typing import TypeAlias, final

from gradmesh.trainer.process_group.latch import Latch
from gradmesh.trainer.process_group.work import PendingWork, Work

_Job: TypeAlias = tuple[PendingWork, Callable[[], None]]


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
        self._lock = threading.Lock()  # guards puts against the last drain
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, name: str, job: Callable[[], None]) -> Work:
        """Append a job; its work ends when the job returns or raises."""
        work = PendingWork(name)
        with self._lock:
            self._latch.check()
            self._jobs.put((work, job))
        return work

    def end(self, error: Exception) -> None:
        """Trip the latch: jobs under way and waiting end with its error. Does not block."""
        self._latch.trip(error)
        self._jobs.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait until the thread has gone, after `end`."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while self._latch.error is None:
            job = self._jobs.get()
            if job is not None:
                self._run_job(*job)
        # Waiters first: telling the peers may take a moment.
        self._drain()
        self._on_end()

    def _run_job(self, work: PendingWork, job: Callable[[], None]) -> None:
        try:
            self._latch.check()
            job()
        except Exception as error:
            self._latch.trip(error)
            work.finish(self._latch.error)
        else:
            work.finish()

    def _drain(self) -> None:
        # Under the lock no submit can pass its check and put afterwards.
        with self._lock:
            while not self._jobs.empty():
                job = self._jobs.get()
                if job is not None:
                    job[0].finish(self._latch.error)

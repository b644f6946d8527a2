"""The same work for every server at once, ended together."""

import threading
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar, final

from gradmesh.protos.errors import Cancelled, DeadlineExceeded
from gradmesh.sdk.checkpoint.snapshot import Progress
from gradmesh.sdk.transport.deadline import Deadline

T = TypeVar("T")

_LOOK_S = 0.1


@final
class Meter:
    """Adds up what threads have done, and ends them when one failed or the time is over.

    Args:
        total: Rows in all.
        progress: Told of every change, one call at a time; None for nobody.
        deadline: Of the whole.
    """

    def __init__(self, total: int, progress: Progress | None, deadline: Deadline) -> None:
        self.deadline = deadline
        self._total = total
        self._progress = progress
        self._lock = threading.Lock()  # guards _done
        self._done = 0
        self._stopped = False

    def add(self, rows: int) -> None:
        """Count rows.

        Raises:
            DeadlineExceeded: The time is over.
            Cancelled: Another thread failed.
        """
        if self._stopped:
            raise Cancelled("another part of the work failed")
        if self.deadline.passed:
            raise DeadlineExceeded(f"{self._done} of {self._total} rows were done in time")
        with self._lock:
            self._done += rows
            if self._progress is not None:
                self._progress(self._done, max(self._done, self._total))

    def stop(self) -> None:
        """End all threads at their next `add`."""
        self._stopped = True


def for_each(count: int, work: Callable[[int], T], meter: Meter) -> list[T]:
    """Run `work(0)` … `work(count - 1)` at once; return the results in order.

    Raises:
        Exception: The first failure, after all threads have ended.
    """
    with ThreadPoolExecutor(max(1, count), thread_name_prefix="checkpoint") as pool:
        try:
            futures = [pool.submit(work, number) for number in range(count)]
            pending = set(futures)
            while pending:
                # In short waits, so that Ctrl-C is heard.
                done, pending = wait(pending, _LOOK_S, FIRST_EXCEPTION)
                for future in done:
                    future.result()
            return [future.result() for future in futures]
        finally:
            meter.stop()

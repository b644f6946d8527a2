"""Several futures as one."""

import threading
from collections.abc import Sequence
from typing import Any, TypeVar

from gradmesh.protos.errors import DeadlineExceeded
from gradmesh.sdk.future.future import Future
from gradmesh.sdk.transport.deadline import Deadline

T = TypeVar("T")


def collect_all(futures: Sequence[Future[T]]) -> Future[list[Future[T]]]:
    """Return a future of the futures themselves, done when all of them are."""
    every = list(futures)
    together: Future[list[Future[T]]] = Future()
    if not every:
        together.set_result(every)
        return together
    lock = threading.Lock()  # guards left
    left = len(every)

    def one(_: Future[T]) -> None:
        nonlocal left
        with lock:
            left -= 1
            last = left == 0
        if last:
            together.set_result(every)

    for future in every:
        future.add_done_callback(one)
    return together


def wait_all(futures: Sequence[Future[Any]], timeout_s: float | None = None) -> list[Any]:
    """Wait until all are done; return their results in order.

    Args:
        futures: What to wait for.
        timeout_s: How long, all together; until their own deadlines by default.

    Raises:
        DeadlineExceeded: Some are not done in time.
        Exception: What went wrong with the first of them that failed, in order; after all ended.
    """
    deadline = None if timeout_s is None else Deadline.after(timeout_s)
    first: BaseException | None = None
    for place, future in enumerate(futures):
        try:
            error = future.exception(None if deadline is None else deadline.remaining_s())
        except DeadlineExceeded:
            raise DeadlineExceeded(
                f"{len(futures) - place} of {len(futures)} calls were not done within {timeout_s} s"
            ) from None
        first = first or error
    if first is not None:
        raise first
    return [future.result() for future in futures]

"""Messages in the background: a few threads for each receiver.

One that cannot be reached holds a thread for each message until it is given up. So a receiver has a
few threads, and its other messages wait for those.
"""

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable
from typing import final

from gradmesh.protos.errors import MeshError
from gradmesh.sdk.rpc.threads import Task

_log = logging.getLogger(__name__)

_AT_ONCE = 16


@final
class Senders:
    """Sends messages.

    Args:
        run: Runs a task on a thread.
    """

    def __init__(self, run: Callable[[Task], None]) -> None:
        self._run = run
        self._lock = threading.Lock()  # guards all below
        self._sending: Counter[str] = Counter()
        self._waiting: dict[str, deque[Task]] = {}

    def send(self, receiver: str, task: Task) -> None:
        """Run the task that sends a message, after others to the receiver if those are many."""
        with self._lock:
            if self._sending[receiver] >= _AT_ONCE:
                self._waiting.setdefault(receiver, deque()).append(task)
                return
            self._sending[receiver] += 1

        def work() -> None:
            following: Task | None = task
            while following is not None:
                try:
                    following()
                except Exception:
                    _log.exception("a message was not sent")
                following = self._next(receiver)

        try:
            self._run(work)
        except MeshError:
            work()  # no thread is free; send on this one

    def _next(self, receiver: str) -> Task | None:
        """Return the next task for a receiver; None ends the thread's work for it."""
        with self._lock:
            waiting = self._waiting.get(receiver)
            if waiting:
                return waiting.popleft()
            self._waiting.pop(receiver, None)
            self._sending[receiver] -= 1
            if not self._sending[receiver]:
                del self._sending[receiver]
            return None

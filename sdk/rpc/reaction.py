"""What this worker does when an answer is there."""

import threading
from collections.abc import Callable
from typing import final


@final
class Reaction:
    """A task that runs once, when an answer is there; it calls callbacks, which may make calls.

    Args:
        ready: The task.
        over: Called with the reaction when the task has ended, whether or not it raised.
    """

    __slots__ = ("_over", "_ready", "thread")

    def __init__(self, ready: Callable[[], None], over: "Callable[[Reaction], None]") -> None:
        self._ready = ready
        self._over = over
        self.thread: int | None = None
        """The thread that it runs on, once it does."""

    def __call__(self) -> None:
        """Run the task."""
        self.thread = threading.get_ident()
        try:
            self._ready()
        finally:
            self._over(self)

"""Future: a value that is there once communication has ended.

Continuations run where the value is waited for, on the caller's thread: the reducer waits for its
buckets in order, so collectives that a continuation starts have one order on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from gradmesh.trainer.process_group import Work


@final
class Future:
    """Hold a value that another thread or rank still works on.

    Args:
        wait: Blocks until the value is there and returns it; called once.
    """

    __slots__ = ("_is_done", "_value", "_wait")

    def __init__(self, wait: Callable[[], Any]) -> None:
        self._wait: Callable[[], Any] | None = wait
        self._is_done = False
        self._value: Any = None

    @classmethod
    def done(cls, value: Any) -> Future:
        """Return a future whose value is there already."""
        return cls(lambda: value)

    @classmethod
    def after(cls, work: Work, value: Any) -> Future:
        """Return a future of a value that a collective fills in place."""

        def wait() -> Any:
            work.wait()
            return value

        return cls(wait)

    def then(self, function: Callable[[Any], Any]) -> Future:
        """Return a future of what a function makes of the value; it may return a future too."""

        def wait() -> Any:
            made = function(self.wait())
            return made.wait() if isinstance(made, Future) else made

        return Future(wait)

    def wait(self) -> Any:
        """Block until the value is there and return it.

        Raises:
            CollectiveTimeout: A rank did not come in time.
            PeerLost: A rank went away.
        """
        if not self._is_done:
            assert self._wait is not None
            self._value = self._wait()
            self._is_done, self._wait = True, None
        return self._value

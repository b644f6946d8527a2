"""The backward pass under way on this thread: its gradient map and what runs at its end.

`run_backward` makes a part of its own. Distributed autograd makes one part a context and enters it
around every piece of the pass that runs on this process, on whatever thread, then finishes it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, final

from gradmesh.engine.autograd.errors import GradientError


@final
class BackwardPart:
    """Be the part of one backward pass that runs on this process.

    Used as a context manager on each thread that works for the pass. A part inside another one,
    as a backward within a backward makes it, leaves its callbacks to the outer part.

    Args:
        into: Where leaf gradients go, a map from leaf to array or RowGrad; None means `.grad`.
    """

    __slots__ = ("_callbacks", "into")

    def __init__(self, into: dict[Any, Any] | None = None) -> None:
        self.into = into
        self._callbacks: list[Callable[[], None]] = []

    def __enter__(self) -> BackwardPart:
        _thread.stack.append(self)
        return self

    def __exit__(self, *exc: object) -> None:
        _thread.stack.pop()

    @property
    def has_callbacks(self) -> bool:
        """Whether something waits for the end of the part."""
        return bool(self._callbacks)

    def queue(self, callback: Callable[[], None]) -> None:
        """Run a callback when the part is finished."""
        self._callbacks.append(callback)

    def finish(self) -> None:
        """Run what was queued, in order; what these callbacks queue runs too."""
        with self:
            while self._callbacks:
                self._callbacks.pop(0)()


class _Thread(threading.local):
    """Hold the parts that run on one thread, outermost first."""

    def __init__(self) -> None:
        self.stack: list[BackwardPart] = []


_thread = _Thread()


def run_part(into: dict[Any, Any] | None, work: Callable[[], None]) -> None:
    """Do the work of a local pass under a part of its own, and finish it if it is the outermost."""
    stack = _thread.stack
    part = BackwardPart(into)
    stack.append(part)
    try:
        work()
        if len(stack) == 1 and part._callbacks:
            part.finish()
    finally:
        stack.pop()


def queue_callback(callback: Callable[[], None]) -> None:
    """Run a callback once, when the backward pass under way has ended well on this process.

    It runs before `backward` returns; in a distributed pass when this process's part for the
    context is done. A pass that fails drops it.

    Raises:
        GradientError: If no backward pass is under way on this thread.
    """
    if not _thread.stack:
        raise GradientError(
            "no backward pass is under way on this thread; "
            "queue_callback belongs into a hook or into a Function's backward"
        )
    _thread.stack[0].queue(callback)


def gradient_map() -> dict[Any, Any] | None:
    """Return the map that the pass under way on this thread fills; None means `.grad`."""
    return _thread.stack[-1].into if _thread.stack else None

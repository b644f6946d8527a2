"""BackwardScope: the gradient map and the final callbacks of a running backward pass.

`run_backward` opens a scope of its own. Distributed autograd makes one scope per context, enters it
on each thread that runs a piece of the pass on this process, and finishes it at the end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, final

from gradmesh.engine.errors import GradientError


@final
class BackwardScope:
    """Hold the gradient map and the callbacks of one backward pass on this process.

    Enter it on each thread that works for the pass. A scope inside another one, which a backward
    within a backward makes, leaves its callbacks to the outer scope.

    Args:
        into: Where leaf gradients go, a map from leaf to array or RowGrad; None means `.grad`.
    """

    __slots__ = ("_callbacks", "into")

    def __init__(self, into: dict[Any, Any] | None = None) -> None:
        self.into = into
        self._callbacks: list[Callable[[], None]] = []

    def __enter__(self) -> BackwardScope:
        _entered.stack.append(self)
        return self

    def __exit__(self, *exc: object) -> None:
        _entered.stack.pop()

    @property
    def has_callbacks(self) -> bool:
        """Whether callbacks are queued."""
        return bool(self._callbacks)

    def queue(self, callback: Callable[[], None]) -> None:
        """Run a callback when the scope is finished."""
        self._callbacks.append(callback)

    def finish(self) -> None:
        """Run the queued callbacks in order, and those that they queue."""
        with self:
            while self._callbacks:
                self._callbacks.pop(0)()


class _ThreadScopes(threading.local):
    """Hold the scopes entered on one thread, outermost first."""

    def __init__(self) -> None:
        self.stack: list[BackwardScope] = []


_entered = _ThreadScopes()


def run_in_scope(into: dict[Any, Any] | None, work: Callable[[], None]) -> None:
    """Run a pass in a scope of its own; finish the scope if it is the outermost."""
    stack = _entered.stack
    scope = BackwardScope(into)
    stack.append(scope)
    try:
        work()
        if len(stack) == 1 and scope._callbacks:
            scope.finish()
    finally:
        stack.pop()


def queue_callback(callback: Callable[[], None]) -> None:
    """Run a callback once, when the running backward pass has succeeded on this process.

    It runs before `backward` returns; in a distributed pass when this process's share of the
    context's backward is done. A pass that fails drops it.

    Raises:
        GradientError: If no backward pass is under way on this thread.
    """
    if not _entered.stack:
        raise GradientError(
            "no backward pass is under way on this thread; "
            "queue_callback belongs into a hook or into a Function's backward"
        )
    _entered.stack[0].queue(callback)


def gradient_map() -> dict[Any, Any] | None:
    """Return the map that the running pass on this thread fills; None means `.grad`."""
    return _entered.stack[-1].into if _entered.stack else None

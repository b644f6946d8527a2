"""Which context the code of a thread works in."""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from gradmesh.sdk.autograd.context import Context

P = ParamSpec("P")
T = TypeVar("T")

_current: contextvars.ContextVar["Context | None"] = contextvars.ContextVar(
    "gradmesh_context", default=None
)


def current_context() -> "Context | None":
    """Return the context that this thread works in, if there is one."""
    return _current.get()


@contextlib.contextmanager
def bound(ctx: "Context | None") -> Iterator[None]:
    """Work in a context, or in none, inside the block; what was before is restored."""
    token = _current.set(ctx)
    try:
        yield
    finally:
        _current.reset(token)


def carry(function: Callable[P, T]) -> Callable[P, T]:
    """Return a function that works in the context of whoever calls `carry` now.

    A thread begins without a context. Give a pool or a thread `carry(function)` instead of the
    function, and it takes part.

    Args:
        function: What the other thread is to run.
    """
    ctx = current_context()

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        with bound(ctx):
            return function(*args, **kwargs)

    return run

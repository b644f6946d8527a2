"""Which context the code of a thread works in."""

import contextvars
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec, TypeVar, final

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


@final
class bound:  # noqa: N801
    """Work in a context, or in none, inside a block; what was before is restored.

    A class, since every call enters it several times and a generator takes thrice as long.

    Args:
        ctx: The context.
    """

    __slots__ = ("_ctx", "_token")

    def __init__(self, ctx: "Context | None") -> None:
        self._ctx = ctx

    def __enter__(self) -> None:
        self._token = _current.set(self._ctx)

    def __exit__(self, *exc: object) -> None:
        _current.reset(self._token)


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

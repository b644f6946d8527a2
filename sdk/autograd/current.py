"""The current context and backward share of a thread."""

import contextvars
import functools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec, TypeVar, final

from gradmesh.engine.autograd import GradientError

if TYPE_CHECKING:
    from gradmesh.sdk.autograd.context import Context
    from gradmesh.sdk.autograd.share import BackwardShare

P = ParamSpec("P")
T = TypeVar("T")


_current: contextvars.ContextVar["Context | None"] = contextvars.ContextVar(
    "gradmesh_context", default=None
)


def current_context() -> "Context | None":
    """Return the current context of this thread, or None."""
    return _current.get()


@final
class bound:  # noqa: N801
    """Work in a context, or in none, inside a block; restore the previous one at its end.

    A class, because every call enters it several times and a generator takes three times as long.

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
    """Return a function that runs in the current context of the thread that calls `carry`.

    A new thread has no current context. Pass `carry(function)` to a thread or pool instead of the
    function.

    Args:
        function: The function for the other thread.
    """
    ctx = current_context()

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        with bound(ctx):
            return function(*args, **kwargs)

    return run


class _Thread(threading.local):
    share: "BackwardShare | None" = None


_thread = _Thread()


@final
class running_share:  # noqa: N801
    """Send the gradients of received tensors through a share, on this thread, inside a block.

    Args:
        share: The share.
    """

    __slots__ = ("_before", "_share")

    def __init__(self, share: "BackwardShare") -> None:
        self._share = share

    def __enter__(self) -> None:
        self._before, _thread.share = _thread.share, self._share

    def __exit__(self, *exc: object) -> None:
        _thread.share = self._before


def active_share(ctx: "Context", what: str) -> "BackwardShare":
    """Return the share that runs on this thread.

    Args:
        ctx: The context it must belong to.
        what: Whose gradients are to be sent, for the error.

    Raises:
        GradientError: None runs, or one of another context.
    """
    share = _thread.share
    if share is None:
        raise GradientError(
            f"the gradients of {what} leave this process: run gm.autograd.backward(ctx, [loss]) "
            f"with their context, {ctx}, instead of loss.backward()"
        )
    if share.ctx is not ctx:
        raise GradientError(
            f"{what} belong to {ctx}, but the backward runs in {share.ctx}; keep the tensors of a "
            "context inside of it"
        )
    return share

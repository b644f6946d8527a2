"""What a thread works in: a context, and a share of a backward pass."""

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


class _Thread(threading.local):
    part: "BackwardShare | None" = None


_thread = _Thread()


@final
class running_share:  # noqa: N801
    """Let tensors from elsewhere give their gradients to a part, on this thread, inside a block.

    Args:
        part: The part.
    """

    __slots__ = ("_before", "_part")

    def __init__(self, part: "BackwardShare") -> None:
        self._part = part

    def __enter__(self) -> None:
        self._before, _thread.part = _thread.part, self._part

    def __exit__(self, *exc: object) -> None:
        _thread.part = self._before


def active_share(ctx: "Context", what: str) -> "BackwardShare":
    """Return the part that runs on this thread.

    Args:
        ctx: The context it must belong to.
        what: Whose gradients are to be sent, for the error.

    Raises:
        GradientError: None runs, or one of another context.
    """
    part = _thread.part
    if part is None:
        raise GradientError(
            f"the gradients of {what} leave this process: run gm.autograd.backward(ctx, [loss]) "
            f"with their context, {ctx}, instead of loss.backward()"
        )
    if part.ctx is not ctx:
        raise GradientError(
            f"{what} belong to {ctx}, but the backward runs in {part.ctx}; keep the tensors of a "
            "context inside of it"
        )
    return part

"""The part of a distributed backward pass that runs on this thread."""

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gradmesh.engine.autograd import GradientError

if TYPE_CHECKING:
    from gradmesh.sdk.autograd.context import Context
    from gradmesh.sdk.autograd.part import Part


class _Thread(threading.local):
    part: "Part | None" = None


_thread = _Thread()


@contextlib.contextmanager
def working_for(part: "Part") -> Iterator[None]:
    """Let tensors from elsewhere give their gradients to a part, on this thread."""
    before, _thread.part = _thread.part, part
    try:
        yield
    finally:
        _thread.part = before


def active_part(ctx: "Context", what: str) -> "Part":
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

"""The part of a distributed backward pass that runs on this thread."""

import threading
from typing import TYPE_CHECKING, final

from gradmesh.engine.autograd import GradientError

if TYPE_CHECKING:
    from gradmesh.sdk.autograd.context import Context
    from gradmesh.sdk.autograd.part import Part


class _Thread(threading.local):
    part: "Part | None" = None


_thread = _Thread()


@final
class working_for:  # noqa: N801
    """Let tensors from elsewhere give their gradients to a part, on this thread, inside a block.

    Args:
        part: The part.
    """

    __slots__ = ("_before", "_part")

    def __init__(self, part: "Part") -> None:
        self._part = part

    def __enter__(self) -> None:
        self._before, _thread.part = _thread.part, self._part

    def __exit__(self, *exc: object) -> None:
        _thread.part = self._before


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

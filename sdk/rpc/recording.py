"""The interface between calls and distributed autograd.

The layer that sends and receives user values does not depend on autograd graphs. It reports each
message here, in a fixed order, and carries the recorder's note to the other side:

    caller                                     callee
    outgoing(tensors, "b", forced=True)
              ── request + note ──►            handling(note):
                                                   incoming(note, tensors, "a")
                                                   function(...)
                                                   outgoing(tensors, "a", forced=False)
              ◄── reply + note ──
    incoming(note, tensors, "b")

The same happens for remote creation (the reply carries no values) and for fetching a kept value
(the request carries none). A call to the own worker takes the same four steps.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, final

from gradmesh.engine.autograd import Tensor
from gradmesh.protos.common.v1.autograd_pb2 import AutogradNote
from gradmesh.protos.common.v1.context_pb2 import ContextId
from gradmesh.protos.errors import InvalidRequest


class Recorder(Protocol):
    """Records every message with user values; `install` sets the recorder of a process."""

    def outgoing(
        self, tensors: Sequence[Tensor], worker: str, *, forced: bool
    ) -> AutogradNote | None:
        """Record a message that is about to be sent, on the thread that sends it.

        Called before the message is encoded. If the message is not sent after all, or its call
        fails, its send record gets no gradients.

        Args:
            tensors: All tensors of the message, in order, whether they require gradients or not.
            worker: The receiver.
            forced: Whether to send the context even if no tensor requires gradients, since tensors
                of the reply may: True for calls, creations and fetches, False for replies.

        Returns:
            The note to send with the message; None outside of a context, and for a reply without
            tensors that require gradients.

        Raises:
            MeshError: The context of this thread was released; nothing is sent then.
        """

    def incoming(self, note: AutogradNote, tensors: Sequence[Tensor], worker: str) -> None:
        """Record a received message that carries a note, before user code reads its values.

        Attach to tensors that require gradients, in place, a node that sends their gradients back.
        For a request this runs inside `handling(note)`. For a reply it runs on the thread that
        reads it, which need not be the calling one nor work in the context: the note names the
        context.

        Args:
            note: The result of `outgoing` on the sender.
            tensors: All tensors of the message in the sender's order: leaves with the sender's
                `requires_grad`, not used by any op yet.
            worker: The sender.

        Raises:
            MeshError: The context was released; the call fails with this error.
        """

    def handling(self, note: AutogradNote) -> AbstractContextManager[object]:
        """Work in the context of a received request; leaving restores the previous one.

        Entered on the thread that runs the function, and again, on any thread, to send the reply of
        a function that answered with a future. Callbacks of futures run in the contextvars of the
        code that added them, so they need no entering.

        Raises:
            MeshError: The context was released; the request is answered with this error.
        """

    def backward(self, root: Tensor, context: ContextId | None, retain_graph: bool) -> None:
        """Run a backward pass from a tensor that this process holds, for `RRef.backward`.

        Args:
            root: A tensor of one element that requires gradients.
            context: Where gradients go; None puts them into `.grad`, as a local backward does.
            retain_graph: Keep the graph for another pass.
        """

    def counters(self) -> Mapping[str, int]:
        """Return counters for `debug_info`, e.g. {"num_autograd_contexts": 0}."""


@final
class NullRecorder:
    """Records nothing: tensors are sent by value and no gradient is sent back."""

    def outgoing(
        self, tensors: Sequence[Tensor], worker: str, *, forced: bool
    ) -> AutogradNote | None:
        """Return None: there is no context."""
        return None

    def incoming(self, note: AutogradNote, tensors: Sequence[Tensor], worker: str) -> None:
        """Leave the tensors as they are."""

    def handling(self, note: AutogradNote) -> AbstractContextManager[object]:
        """Change nothing."""
        return nullcontext()

    def backward(self, root: Tensor, context: ContextId | None, retain_graph: bool) -> None:
        """Run a local backward pass.

        Raises:
            InvalidRequest: A context was given.
        """
        if context is not None:
            raise InvalidRequest("this process keeps no contexts of distributed autograd")
        root.backward(retain_graph=retain_graph)

    def counters(self) -> Mapping[str, int]:
        """Return nothing."""
        return {}


_installed: Recorder = NullRecorder()


def install(recorder: Recorder) -> None:
    """Set the recorder of this process."""
    global _installed
    _installed = recorder


def recorder() -> Recorder:
    """Return the recorder of this process."""
    return _installed

"""What calls tell distributed autograd, and what it tells them.

The layer that sends and receives user values knows no graph. It reports each message here, in a
fixed order, and carries a note of the recorder's to the other side:

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
    """Sees every message with user values; the one of a process is set by `install`."""

    def outgoing(
        self, tensors: Sequence[Tensor], worker: str, *, forced: bool
    ) -> AutogradNote | None:
        """Note a message that is about to be sent, on the thread that sends it.

        Called before the message is encoded; a message that is then not sent, or whose call fails,
        leaves a send that nobody answers.

        Args:
            tensors: All tensors of the message, in order, whether they require gradients or not.
            worker: Who gets it.
            forced: Whether the context travels though no tensor requires gradients, as the reply
                may have some: true for calls, creations and fetches, false for replies.

        Returns:
            What travels with the message: None outside of a context, and for a reply without
            tensors that require gradients.

        Raises:
            MeshError: The context of this thread is over; nothing is sent then.
        """

    def incoming(self, note: AutogradNote, tensors: Sequence[Tensor], worker: str) -> None:
        """Note a message that arrived with a note, before anybody sees its values.

        Tensors that require gradients get, in place, a node that sends their gradients back. For
        a request this runs inside `handling(note)`. For a reply it runs on whichever thread takes
        it, which need not be the one that called, nor be in the context: the note says which.

        Args:
            note: What `outgoing` returned there.
            tensors: All tensors of the message in the sender's order: leaves with the sender's
                `requires_grad`, not yet seen by anybody.
            worker: Who sent it.

        Raises:
            MeshError: The context was released. It becomes the error of the call.
        """

    def handling(self, note: AutogradNote) -> AbstractContextManager[object]:
        """Work in the context of a request that arrived; leaving restores what was before.

        Entered on the thread that runs the function, and again, on any thread, to send the reply of
        a function that answered with a future. Callbacks of futures run in the contextvars of the
        code that added them, so they need no entering.

        Raises:
            MeshError: The context was released. It becomes the answer to the request.
        """

    def backward(self, root: Tensor, context: ContextId | None, retain_graph: bool) -> None:
        """Run a backward pass from a tensor that this process holds, for `RRef.backward`.

        Args:
            root: A tensor of one element that requires gradients.
            context: Where gradients go; None puts them into `.grad`, as a local backward does.
            retain_graph: Keep the graph for another pass.
        """

    def counters(self) -> Mapping[str, int]:
        """Return figures for `debug_info`, e.g. {"num_autograd_contexts": 0}."""


@final
class NullRecorder:
    """Records nothing: tensors travel by value and no gradient comes back."""

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
        """Run a local backward.

        Raises:
            InvalidRequest: A context is asked for.
        """
        if context is not None:
            raise InvalidRequest("this process keeps no contexts of distributed autograd")
        root.backward(retain_graph=retain_graph)

    def counters(self) -> Mapping[str, int]:
        """Return nothing."""
        return {}


_installed: Recorder = NullRecorder()


def install(recorder: Recorder) -> None:
    """Let a recorder see the messages of this process from now on."""
    global _installed
    _installed = recorder


def recorder() -> Recorder:
    """Return the recorder of this process."""
    return _installed

"""Records the messages of calls in the context of their thread."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import final

from gradmesh.engine.autograd import Tensor
from gradmesh.protos.common.v1.autograd_pb2 import AutogradNote
from gradmesh.protos.common.v1.context_pb2 import ContextId
from gradmesh.sdk.autograd.backward import backward
from gradmesh.sdk.autograd.binding import bound, current_context
from gradmesh.sdk.autograd.contexts import Contexts


@final
class ContextRecorder:
    """Notes what calls send and receive, so that a backward finds its way back.

    Args:
        contexts: The contexts of this process.
    """

    def __init__(self, contexts: Contexts) -> None:
        self._contexts = contexts

    def outgoing(
        self, tensors: Sequence[Tensor], worker: str, *, forced: bool
    ) -> AutogradNote | None:
        """Note a message that is about to be sent.

        Raises:
            ContextReleased: The context of this thread is over.
        """
        ctx = current_context()
        if ctx is None:
            return None
        wanted = [tensor for tensor in tensors if tensor.requires_grad]
        if not wanted and not forced:
            return None
        ctx.check()
        return ctx.messages.send(wanted, worker)

    def incoming(self, note: AutogradNote, tensors: Sequence[Tensor], worker: str) -> None:
        """Note a message that arrived, and wire its tensors to where they came from.

        Raises:
            ContextReleased: The context is over.
        """
        self._contexts.adopt(note.context).messages.receive(note, tensors, worker)

    def handling(self, note: AutogradNote) -> AbstractContextManager[object]:
        """Work in the context of a request; it begins to exist here with the first one.

        Raises:
            ContextReleased: The context is over.
        """
        mark = note.mark if note.HasField("mark") else None
        return bound(self._contexts.adopt(note.context, mark))

    def backward(self, root: Tensor, context: ContextId | None, retain_graph: bool) -> None:
        """Run a backward pass from a tensor that this process holds."""
        if context is None:
            root.backward(retain_graph=retain_graph)
        else:
            backward(self._contexts.adopt(context), [root], retain_graph)

    def counters(self) -> Mapping[str, int]:
        """Return how many contexts are open and how many passes run."""
        return self._contexts.counters()

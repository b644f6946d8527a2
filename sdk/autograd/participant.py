"""A process's part in distributed autograd: it serves passes and records its calls."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import final

from google.protobuf.descriptor import ServiceDescriptor

from gradmesh.engine.autograd import Tensor
from gradmesh.protos.autograd.v1 import autograd_pb2
from gradmesh.protos.common.v1.autograd_pb2 import AutogradNote
from gradmesh.protos.common.v1.context_pb2 import ContextId
from gradmesh.sdk.autograd.backward import backward
from gradmesh.sdk.autograd.current import bound, current_context
from gradmesh.sdk.autograd.registry import CONTEXTS, ContextRegistry
from gradmesh.sdk.autograd.servicer import AutogradServicer, Step
from gradmesh.sdk.mesh.mesh import Mesh
from gradmesh.sdk.rpc.agent import Agent
from gradmesh.sdk.rpc.recording import NullRecorder, install

_SERVICE = autograd_pb2.DESCRIPTOR.services_by_name["AutogradService"]


@final
class ContextRecorder:
    """Record what calls send and receive, so that a backward pass can follow it.

    Args:
        contexts: The contexts of this process.
    """

    def __init__(self, contexts: ContextRegistry) -> None:
        self._contexts = contexts

    def outgoing(
        self, tensors: Sequence[Tensor], worker: str, *, forced: bool
    ) -> AutogradNote | None:
        """Record a message that is about to be sent.

        Raises:
            ContextReleased: The context of this thread was released.
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
        """Record a received message, and link its tensors to their origin.

        It never creates a context: `handling` has done so for a request, and a reply belongs to
        one that is open here.

        Raises:
            ContextReleased: The context was released, or is not open here.
        """
        self._contexts.find(note.context).messages.receive(note, tensors, worker)

    def handling(self, note: AutogradNote) -> AbstractContextManager[object]:
        """Work in the context of a request; the first request creates it here.

        Raises:
            ContextReleased: The context was released.
        """
        mark = note.mark if note.HasField("mark") else None
        return bound(self._contexts.get_or_create(note.context, mark))

    def backward(self, root: Tensor, context: ContextId | None, retain_graph: bool) -> None:
        """Run a backward pass from a tensor that this process holds."""
        if context is None:
            root.backward(retain_graph=retain_graph)
        else:
            backward(self._contexts.get_or_create(context), [root], retain_graph)

    def counters(self) -> Mapping[str, int]:
        """Return how many contexts are open and how many passes run."""
        return self._contexts.counters()


@final
class AutogradParticipant:
    """Serve the passes of other workers, and record the calls of this process.

    Args:
        agent: The process's agent, which reaches the other workers.
        step: Takes one phase of a step of parameters here.
        contexts: The contexts of the process.
    """

    def __init__(self, agent: Agent, step: Step, contexts: ContextRegistry = CONTEXTS) -> None:
        self._agent = agent
        self._contexts = contexts
        self._servicer = AutogradServicer(
            contexts, agent.name, agent.incarnation, step, agent.openers
        )

    @property
    def services(self) -> dict[ServiceDescriptor, object]:
        """The services for the process's server."""
        return {_SERVICE: self._servicer}

    def join(self, mesh: Mesh) -> None:
        """Install the recorder of calls."""
        self._contexts.attach(self._agent, mesh)
        install(ContextRecorder(self._contexts))

    def close(self) -> None:
        """Release the contexts that are open; may be called twice."""
        if self._contexts.agent is self._agent:
            install(NullRecorder())
            self._contexts.detach()
        self._servicer.close()

"""A process's part in distributed autograd, beside its RPC agent."""

from typing import TYPE_CHECKING, final

from google.protobuf.descriptor import ServiceDescriptor

from gradmesh.protos.autograd.v1 import autograd_pb2
from gradmesh.protos.common.v1 import context_pb2
from gradmesh.sdk.autograd.contexts import CONTEXTS, Contexts
from gradmesh.sdk.autograd.recorder import ContextRecorder
from gradmesh.sdk.autograd.servicer import AutogradServicer
from gradmesh.sdk.mesh.mesh import Mesh
from gradmesh.sdk.optim.stepper import Stepper
from gradmesh.sdk.owner.servicer import ContextHolder
from gradmesh.sdk.rpc.recording import NullRecorder, install
from gradmesh.sdk.transport.channel import Channel
from gradmesh.sdk.transport.deadline import Deadline

if TYPE_CHECKING:
    from gradmesh.sdk.rpc.agent import Agent

_SERVICE = autograd_pb2.DESCRIPTOR.services_by_name["AutogradService"]


@final
class Station:
    """What a process needs to take part: its servicer, and its contexts reaching others.

    Args:
        agent: The process's agent.
        contexts: The contexts of the process.
    """

    def __init__(self, agent: "Agent", contexts: Contexts = CONTEXTS) -> None:
        self._agent = agent
        self._contexts = contexts
        self._servicer = AutogradServicer(
            contexts, self.name, self.incarnation, Stepper(agent, contexts).step
        )

    @property
    def name(self) -> str:
        """Name of this process."""
        return self._agent.name

    @property
    def incarnation(self) -> int:
        """Incarnation of this process."""
        return self._agent.me.incarnation

    def channel(self, worker: str, deadline: Deadline) -> Channel:
        """Return the connection to a worker."""
        return self._agent.channel(worker, deadline)

    def suspect(self, worker: str) -> None:
        """Ask anew where a worker is before the next message: it did not answer."""
        self._agent.peers.suspect(worker)

    @property
    def services(self) -> dict[ServiceDescriptor, object]:
        """What the process's server has to serve."""
        return {_SERVICE: self._servicer}

    def join(self, mesh: Mesh) -> None:
        """Begin: calls are recorded in the context of their thread from now on."""
        self._contexts.attach(self, mesh)
        install(ContextRecorder(self._contexts))

    def close(self) -> None:
        """End; contexts that are open are over. May be called twice."""
        if self._contexts.peers is self:
            install(NullRecorder())
            self._contexts.detach()
        self._servicer.close()


@final
class SharedContexts:
    """What several parts of a process keep for contexts.

    Args:
        holders: These parts.
    """

    def __init__(self, *holders: ContextHolder) -> None:
        self._holders = holders

    def release(self, context: context_pb2.ContextId) -> bool:
        """Forget a context everywhere; return whether anything was kept for it."""
        released = [holder.release(context) for holder in self._holders]
        return any(released)

    def open_count(self) -> int:
        """Return how many contexts are kept, by the part that has most."""
        return max(holder.open_count() for holder in self._holders)

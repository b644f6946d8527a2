"""The span of one forward and backward pass over several processes.

A context records what was sent and received in it, and collects the gradients of this process's
parameters in a map of its own, so that concurrent passes never mix. It is bound to the thread that
opened it, is sent with every call made in it, and exists on every process that was called.
"""

import contextlib
import logging
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeAlias, final

from gradmesh.engine.autograd import Tensor
from gradmesh.protos import limits
from gradmesh.protos.autograd.v1 import autograd_pb2 as pb
from gradmesh.protos.common.v1 import context_pb2
from gradmesh.protos.errors import (
    BackwardAborted,
    ContextReleased,
    InvalidRequest,
    MeshError,
)
from gradmesh.protos.limits import check_text
from gradmesh.protos.owner.v1 import owner_pb2
from gradmesh.sdk.autograd.current import bound
from gradmesh.sdk.autograd.messages import ContextMessages
from gradmesh.sdk.autograd.share import BackwardShare
from gradmesh.sdk.autograd.tables import ContextLookups, LookupRecord
from gradmesh.sdk.cluster.servers import METHODS, call_all
from gradmesh.sdk.mesh.mesh import Mesh
from gradmesh.sdk.rpc.agent import Agent
from gradmesh.sdk.table.lookup import FetchedRows
from gradmesh.sdk.transport.deadline import Deadline

_log = logging.getLogger(__name__)

# A context that was not applied ended in an error, perhaps of a lost server: do not wait long.
_RELEASE_S = 1.0

ContextKey: TypeAlias = tuple[str, int, int]
"""Worker, incarnation, counter."""


@final
class Context:
    """An open context on this process; created by `context`, or by the first message that names it.

    Args:
        id_: Its id.
        mesh: The mesh it spans; None where tables cannot be reached.
        agent: Reaches other workers; None where they cannot be reached.
        mark: The step of a synchronous run; None applies on its own.

    Attributes:
        map: Gradients of this process's leaves.
        worker: Name of this process.
        turn: Held by the backward that runs; others wait for it.
    """

    def __init__(
        self,
        id_: context_pb2.ContextId,
        mesh: Mesh | None,
        agent: Agent | None,
        mark: context_pb2.StepMark | None,
    ) -> None:
        self.id = id_
        self.mark = mark
        self._mesh = mesh
        self._agent = agent
        self.worker = id_.worker if agent is None else agent.name
        incarnation = id_.incarnation if agent is None else agent.incarnation
        self.map: dict[Any, Any] = {}
        self.messages = ContextMessages(self, self.worker, incarnation)
        self.tables = ContextLookups(self, self.worker)
        self.applied = False
        self._after: list[Callable[[], None]] = []
        self.released = False
        self.turn = threading.Lock()
        self.passes = 0
        self.failed: list[int] = []
        self._lock = threading.Lock()  # guards _shares and `released`
        self._shares: dict[str, BackwardShare] = {}

    @property
    def key(self) -> ContextKey:
        """The id as a tuple."""
        return self.id.worker, self.id.incarnation, self.id.counter

    @property
    def name(self) -> str:
        """The id as text, which may be sent to other workers and given to `find_context`."""
        return f"{self.id.worker}/{self.id.incarnation}/{self.id.counter}"

    @property
    def has_mesh(self) -> bool:
        """Whether the context spans a mesh, so that its rows of tables can be applied."""
        return self._mesh is not None

    @property
    def mesh(self) -> Mesh:
        """The mesh that the context spans.

        Raises:
            InvalidRequest: There is none.
        """
        if self._mesh is None:
            raise InvalidRequest(f"{self} spans no mesh; connect, or start an agent, first")
        return self._mesh

    @property
    def agent(self) -> Agent:
        """The agent that reaches other workers.

        Raises:
            InvalidRequest: This process has none.
        """
        if self._agent is None:
            raise InvalidRequest(f"{self}: this process has no agent, so it reaches no workers")
        return self._agent

    @property
    def lookups(self) -> list[LookupRecord]:
        """What was read from tables."""
        return self.tables.made

    def reserve(self, count: int) -> int:
        """Reserve numbers for the messages of a lookup; return the first."""
        return self.tables.reserve(count)

    def record(self, fetched: FetchedRows) -> list[Tensor]:
        """Record a lookup; return its rows as tensors whose gradients are sent to the servers."""
        return self.tables.record(fetched)

    def when_applied(self, begin: Callable[[], None]) -> None:
        """Call a function as soon as the context is applied; it must not block."""
        self._after.append(begin)

    def note_applied(self) -> None:
        """Mark the context as applied: the servers have its step."""
        self.applied = True
        after, self._after = self._after, []
        for begin in after:
            begin()

    def bind(self) -> contextlib.AbstractContextManager[None]:
        """Make the context current on this thread, for the duration of a `with` block."""
        return bound(self)

    def check(self) -> None:
        """Raise if the context is not open.

        Raises:
            ContextReleased: It was left or applied.
        """
        if self.released or self.applied:
            state = "applied" if self.applied else "released"
            raise ContextReleased(f"{self} was {state}; open a new one", context=self.name)

    def gradients(self) -> dict[Any, Any]:
        """Return the gradients of this process's leaves: arrays by leaf tensor."""
        return dict(self.map)

    def share(self, head: pb.Pass, deadline: Deadline) -> BackwardShare:
        """Return this process's share of a pass, made on first use.

        A newer pass of the same worker aborts its older ones here.

        Raises:
            ContextReleased: The context was released.
            BackwardAborted: The pass is older than the newest of its worker.
            LimitExceeded: Too many workers have begun passes in the context.
        """
        initiator = head.initiator.name
        with self._lock:
            if self.released:
                raise ContextReleased(f"{self} was released; open a new one", context=self.name)
            held = self._shares.get(initiator)
            if held is not None and held.head.number == head.number:
                return held
            if held is not None and held.head.number > head.number:
                raise BackwardAborted(f"{held.name} has replaced it", worker=self.worker)
            if held is None:
                limits.PASSES.check(len(self._shares))
                check_text("name of a worker", initiator, limits.MAX_NAME_BYTES)
            fresh = self._shares[initiator] = BackwardShare(self, head, deadline)
        if held is not None and (not held.settled or held.head.number in head.failed):
            held.abort(BackwardAborted(f"{fresh.name} has replaced it", worker=self.worker))
        return fresh

    def find_share(self, head: pb.Pass) -> BackwardShare | None:
        """Return this process's share of a pass, if it has one."""
        with self._lock:
            held = self._shares.get(head.initiator.name)
        return held if held is not None and held.head.number == head.number else None

    def active_passes(self) -> int:
        """Return how many backward passes are under way here."""
        with self._lock:
            return sum(not share.settled and share.error is None for share in self._shares.values())

    def close(self) -> set[str]:
        """End the context on this process; return its participants. May be called twice."""
        with self._lock:
            self.released = True
            shares, self._shares = self._shares, {}
        for share in shares.values():
            if not share.settled:
                share.abort(ContextReleased(f"{self} was released", context=self.name))
        self.tables.clear()
        return self.messages.clear() - {self.worker}

    def release_tables(self, shared: bool) -> None:
        """Release the context on the servers.

        A server that cannot be reached releases it when the lease has run out.

        Args:
            shared: Whether other workers may have looked rows up in it.
        """
        tables = self.tables
        if self._mesh is None or (self.applied and tables.whole):
            return  # the servers released it when they applied it
        if sys.is_finalizing():
            return  # gRPC's threads are gone: no reply would come
        try:
            if shared or not tables.whole:
                # A lookup failed, or others made some; any server may keep something.
                tables.add_all_servers()
            if not tables.channels:
                return
            request = owner_pb2.ReleaseContextRequest(context=self.id)
            calls = [(channel, request) for channel in tables.channels.values()]
            # Wait for the calls, because gRPC cancels a call without a reference.
            call_all(METHODS["ReleaseContext"], calls, Deadline.after(_RELEASE_S))
        except MeshError as error:
            _log.info("context not released", extra={"context": str(self), "error": error.message})

    def __repr__(self) -> str:
        return f"Context({self.name})"

"""The span of one forward and backward pass over several processes.

A context remembers which rows were looked up where, and collects the gradients of this process's
parameters in a map of its own, so that concurrent passes never mix. It is bound to the thread that
opened it.
"""

import contextlib
import contextvars
import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

from gradmesh.engine.autograd import Tensor
from gradmesh.protos.common.v1 import context_pb2
from gradmesh.protos.errors import ContextReleased, GradmeshError
from gradmesh.protos.owner.v1 import owner_pb2
from gradmesh.sdk.mesh.mesh import Mesh
from gradmesh.sdk.mesh.servers import METHODS, call_all
from gradmesh.sdk.table.lookup import Lookup
from gradmesh.sdk.transport.channel import Channel
from gradmesh.sdk.transport.deadline import Deadline

_log = logging.getLogger(__name__)

# A context that was not applied ended in an error, perhaps a server's: no reason to wait for long.
_RELEASE_S = 1.0

_current: contextvars.ContextVar["Context | None"] = contextvars.ContextVar(
    "gradmesh_context", default=None
)


@dataclass(frozen=True, slots=True, eq=False)
class RecordedLookup:
    """A lookup made in a context.

    Args:
        lookup: What was read, and from where.
        rows: The tensors that the rows became; their gradients go back to the servers.
    """

    lookup: Lookup
    rows: list[Tensor]


@final
class Context:
    """An open context; made by `context`.

    Args:
        mesh: The mesh it spans.
        mark: The place in a synchronous run; None applies on its own.
    """

    def __init__(self, mesh: Mesh, mark: context_pb2.StepMark | None) -> None:
        self.mesh = mesh
        self.mark = mark
        self.id = mesh.new_context_id()
        self.lookups: list[RecordedLookup] = []
        self.applied = False
        self.released = False
        # Numbers of the lookups whose gradients all their servers have.
        self.sent: set[int] = set()
        # How many lookups have brought gradients to each server, by its address.
        self.returned: dict[str, int] = {}
        self.map: dict[Any, Any] = {}
        self.channels: dict[str, Channel] = {}
        self._next = 0

    def reserve(self, count: int) -> int:
        """Take numbers for so many messages of a lookup; return the first."""
        first = self._next + 1
        self._next += max(count, 1)
        return first

    def record(self, lookup: Lookup, rows: list[Tensor]) -> None:
        """Remember a lookup whose gradients will go back to the servers."""
        self.lookups.append(RecordedLookup(lookup, rows))
        for shard in lookup.route.shards:
            channel = self.mesh.servers.channel(lookup.shards, shard)
            self.channels[channel.address] = channel

    def check(self) -> None:
        """Return if the context is open.

        Raises:
            ContextReleased: It was left or applied.
        """
        if self.released or self.applied:
            state = "applied" if self.applied else "released"
            raise ContextReleased(f"{self} was {state}; open a new one")

    def gradients(self) -> dict[Any, Any]:
        """Return the gradients of this process's leaves, array by leaf."""
        rows = {rows for recorded in self.lookups for rows in recorded.rows}
        return {leaf: grad for leaf, grad in self.map.items() if leaf not in rows}

    def release(self) -> None:
        """Let the servers forget the context; may be called twice.

        Servers that cannot be reached forget it by themselves, in time.
        """
        whole = self._next == len(self.lookups)
        if self.released or (self.applied and whole):
            return  # the servers forgot it when they applied it
        self.released = True
        if sys.is_finalizing():
            return  # gRPC's threads are gone: no answer would come
        request = owner_pb2.ReleaseContextRequest(context=self.id)
        try:
            if not whole:
                # A lookup failed; any server may have answered its part.
                self._add_all_channels()
            calls = [(channel, request) for channel in self.channels.values()]
            # Waited for: gRPC cancels a call that nobody holds.
            call_all(METHODS["ReleaseContext"], calls, Deadline.after(_RELEASE_S))
        except GradmeshError as error:
            _log.info("context not released", extra={"context": str(self), "error": error.message})

    def _add_all_channels(self) -> None:
        servers = self.mesh.servers
        shards = servers.held_map()
        if shards is None:
            return
        for shard in range(len(shards.names)):
            channel = servers.channel(shards, shard)
            self.channels.setdefault(channel.address, channel)

    def __repr__(self) -> str:
        return f"Context({self.id.worker}/{self.id.incarnation}/{self.id.counter})"


@contextlib.contextmanager
def context(mesh: Mesh, mark: context_pb2.StepMark | None = None) -> Iterator[Context]:
    """Open a context on this thread; leaving it releases what the servers keep for it.

    Args:
        mesh: The mesh it spans.
        mark: The place in a synchronous run, from `Membership.mark`; by default the context is
            applied on its own.

    Raises:
        RuntimeError: The thread has an open context already.
    """
    if _current.get() is not None:
        raise RuntimeError(f"this thread has an open context, {_current.get()}; leave it first")
    opened = Context(mesh, mark)
    token = _current.set(opened)
    try:
        yield opened
    finally:
        _current.reset(token)
        opened.release()


def current_context() -> Context | None:
    """Return the context that is open on this thread, if there is one."""
    return _current.get()

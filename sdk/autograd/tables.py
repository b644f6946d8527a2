"""The lookups of a context; their rows are received tensors like those of messages."""

import functools
import hashlib
import threading
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, final

import numpy as np

from gradmesh.engine.autograd import Tensor, receive
from gradmesh.protos.frame import Frame
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2 as pb
from gradmesh.protos.precision import pack
from gradmesh.sdk.autograd.current import active_share
from gradmesh.sdk.cluster.servers import METHODS
from gradmesh.sdk.process import fault
from gradmesh.sdk.table.lookup import FetchedRows
from gradmesh.sdk.transport.channel import Channel

if TYPE_CHECKING:
    from gradmesh.sdk.autograd.context import Context
    from gradmesh.sdk.autograd.share import BackwardShare


@final
class LookupRecord:
    """The record of a lookup made in a context; sends the gradients of its rows.

    Args:
        ctx: The context.
        fetched: The rows, and where they came from.
    """

    __slots__ = ("ctx", "fetched")

    def __init__(self, ctx: "Context", fetched: FetchedRows) -> None:
        self.ctx = ctx
        self.fetched = fetched

    def give_back(self, grads: list[Any]) -> None:
        """Send the gradients of the rows to their servers, as soon as they are complete."""
        share = active_share(self.ctx, "rows of tables")
        if all(grad is None for grad in grads):
            return
        # The gradients of all tables of a lookup are sent together, also of tables that the roots
        # do not use.
        filled = [
            np.zeros_like(rows) if grad is None else grad
            for rows, grad in zip(self.fetched.rows, grads, strict=True)
        ]
        servers, wire = self.ctx.mesh.connection.servers, self.fetched.wire.grads
        number = pass_number(self.ctx, share)
        fault.point("before-push", step_of(self.ctx))
        for message in self.fetched.route.messages:
            request = pb.BackwardRequest(
                context=self.ctx.id,
                lookup=self.fetched.first + message.number,
                wire_grads=wire,
                pass_number=number,
            )
            # Views of the send buffer: gradients are written in place.
            arrays = [
                array
                for some in message.slices
                for array in pack(filled[some.group][some.span], wire)
            ]
            channel = servers.channel(self.fetched.shards, message.shard)
            call = channel.start(METHODS["Backward"], Frame(request, arrays), share.deadline)
            share.add_call(call, (channel.address, request.lookup))


@final
class ContextLookups:
    """The lookups of a context on this process.

    Args:
        ctx: The context.
        worker: Name of this process.
    """

    def __init__(self, ctx: "Context", worker: str) -> None:
        # A reference cycle would keep its arrays until the garbage collector runs.
        self._owner = weakref.ref(ctx)
        self._lock = threading.Lock()  # guards all below
        # Several workers may look up rows in one context; servers distinguish them by number.
        self._base = 0 if worker == ctx.id.worker else salt(worker)
        self._next = 0
        self._begun = self._answered = 0
        self.made: list[LookupRecord] = []
        self.channels: dict[str, Channel] = {}
        self._returned: dict[str, set[int]] = {}

    @property
    def _ctx(self) -> "Context":
        ctx = self._owner()
        assert ctx is not None  # it holds this object
        return ctx

    def reserve(self, count: int) -> int:
        """Reserve numbers for the messages of a lookup; return the first."""
        with self._lock:
            first = self._base + self._next + 1
            self._next += max(count, 1)
            self._begun += 1
            return first

    def record(self, fetched: FetchedRows) -> list[Tensor]:
        """Record a lookup; return its rows as tensors whose gradients are sent to the servers."""
        recorded = LookupRecord(self._ctx, fetched)
        tensors = [Tensor(rows) for rows in fetched.rows]
        receive(tensors, recorded)
        servers = self._ctx.mesh.connection.servers
        with self._lock:
            self._answered += 1
            self.made.append(recorded)
            for shard in fetched.route.shards:
                channel = servers.channel(fetched.shards, shard)
                self.channels[channel.address] = channel
        return tensors

    def note_returned(self, pushed: Iterable[tuple[str, int]]) -> None:
        """Store what a successful pass has pushed: address and number of each lookup."""
        with self._lock:
            for address, number in pushed:
                self._returned.setdefault(address, set()).add(number)

    def returned(self, address: str) -> int:
        """Return the number of lookups whose gradients were sent to a server."""
        with self._lock:
            return len(self._returned.get(address, ()))

    def add_all_servers(self) -> None:
        """Assume that every server has state of the context."""
        servers = self._ctx.mesh.connection.servers
        shards = servers.held_map()
        if shards is None:
            return
        with self._lock:
            for shard in range(len(shards.names)):
                channel = servers.channel(shards, shard)
                self.channels.setdefault(channel.address, channel)

    @property
    def whole(self) -> bool:
        """Whether every lookup has its reply, so that its servers are known."""
        return self._begun == self._answered

    def clear(self) -> None:
        """Drop the rows."""
        with self._lock:
            self.made.clear()


def step_of(ctx: "Context") -> int:
    """Return the step of a context in a run; 0 outside of one."""
    return 0 if ctx.mark is None else ctx.mark.step


@functools.lru_cache(1024)
def salt(worker: str) -> int:
    """Return the upper half of a worker's numbers, which makes them unique among workers."""
    digest = hashlib.blake2b(worker.encode(), digest_size=4).digest()
    return (int.from_bytes(digest, "little") >> 1 | 1) << 32


def pass_number(ctx: "Context", share: "BackwardShare") -> int:
    """Return the number of a pass as servers count it."""
    initiator = share.head.initiator.name
    return share.head.number + (0 if initiator == ctx.id.worker else salt(initiator))

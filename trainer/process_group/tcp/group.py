"""The process group over plain TCP sockets: a full mesh, one connection for each pair.

All-reduce of big arrays: every rank receives its slice from all others, reduces it in rank
order and sends the result to all; of small ones: everybody sends all to everybody and
reduces all, one round instead of two. Both give the same bits.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import final

import numpy as np

from gradmesh.trainer.errors import (
    CollectiveMismatch,
    CollectiveTimeout,
    GroupAborted,
    GroupClosed,
    PeerLost,
)
from gradmesh.trainer.process_group.argument import (
    check_gather,
    check_reduce,
    check_root,
    check_target,
)
from gradmesh.trainer.process_group.latch import Latch
from gradmesh.trainer.process_group.process_group import AnyArray, ProcessGroup, ReduceOp
from gradmesh.trainer.process_group.queue import WorkQueue
from gradmesh.trainer.process_group.reduction import reduce_in_order, slices
from gradmesh.trainer.process_group.store import Store
from gradmesh.trainer.process_group.tcp.exchange import Exchange
from gradmesh.trainer.process_group.tcp.handshake import Identity
from gradmesh.trainer.process_group.tcp.link import Link
from gradmesh.trainer.process_group.tcp.message import Kind
from gradmesh.trainer.process_group.tcp.rendezvous import Endpoint, connect_mesh, share_secret
from gradmesh.trainer.process_group.work import Work

_ONE_ROUND_BYTES = 16 * 1024
_CLOSE_S = 5.0
_FAREWELL_S = 0.5


@final
class TcpProcessGroup(ProcessGroup):
    """Ranks joined by TCP. Build it with `connect`; use it from any thread.

    Args:
        links: A link to every other rank, by rank.
        identity: Who we are.
        timeout_s: Longest time one collective may take.
    """

    def __init__(self, links: Mapping[int, Link], identity: Identity, timeout_s: float) -> None:
        self._links = links
        self._identity = identity
        self._timeout_s = timeout_s
        self._latch = Latch()
        self._exchange = Exchange(links, self._latch)
        self._scratch = np.empty(0, np.uint8)
        self._is_closed = False
        self._works = WorkQueue(f"process-group-{identity.rank}", self._latch, self._leave)

    @classmethod
    def connect(
        cls,
        store: Store,
        *,
        generation: int,
        rank: int,
        world_size: int,
        timeout_s: float,
        endpoint: Endpoint | None = None,
    ) -> "TcpProcessGroup":
        """Meet the other ranks of the generation and return the group.

        Args:
            store: The generation's store, shared by its ranks.
            generation: The membership the group belongs to.
            rank: This process's place.
            world_size: How many ranks come.
            timeout_s: Longest time to meet, and for one collective later.
            endpoint: Where to listen; loopback if None.

        Raises:
            CollectiveTimeout: A rank did not come in time.
            PeerLost: A rank cannot be reached.
            HandshakeRefused: A rank is in another generation.
        """
        check_root(rank, world_size)
        secret = share_secret(store, rank, timeout_s)
        identity = Identity(generation=generation, world_size=world_size, rank=rank, secret=secret)
        links = connect_mesh(store, identity, endpoint or Endpoint(), timeout_s)
        return cls(links, identity, timeout_s)

    @property
    def rank(self) -> int:
        """This process's place."""
        return self._identity.rank

    @property
    def size(self) -> int:
        """How many ranks take part."""
        return self._identity.world_size

    @property
    def bytes_moved(self) -> int:
        """Bytes this rank has sent and received so far, headers included."""
        return sum(link.bytes_moved for link in self._links.values())

    def __repr__(self) -> str:
        who = self._identity
        return f"TcpProcessGroup(rank={who.rank}/{who.world_size}, generation={who.generation})"

    def all_reduce(self, array: AnyArray, op: ReduceOp = "sum") -> Work:
        """Combine `array` over all ranks, in rank order, in place."""
        check_reduce(array, op)
        text = f"all_reduce({op}) of {array.size} {array.dtype.name}"
        return self._submit(text, lambda deadline: self._all_reduce(text, array, op, deadline))

    def broadcast(self, array: AnyArray, root: int) -> Work:
        """Replace `array` on every rank by the one of rank `root`."""
        check_target(array, "broadcast")
        check_root(root, self.size)
        text = f"broadcast({root}) of {array.size} {array.dtype.name}"
        return self._submit(text, lambda deadline: self._broadcast(text, array, root, deadline))

    def all_gather(self, outputs: Sequence[AnyArray], array: AnyArray) -> Work:
        """Copy each rank's `array` into `outputs[rank]` on every rank."""
        outputs = list(outputs)
        check_gather(outputs, array, self.rank, self.size)
        text = f"all_gather of {array.dtype.name}"
        return self._submit(text, lambda deadline: self._all_gather(text, outputs, array, deadline))

    def barrier(self) -> Work:
        """End once every rank has come here."""
        nothing = dict.fromkeys(self._links, memoryview(b""))
        return self._submit(
            "barrier", lambda deadline: self._exchange.run("barrier", nothing, nothing, deadline)
        )

    def abort(self) -> None:
        """End all pending works with GroupAborted, and tell the peers. Does not block."""
        self._works.end(GroupAborted(f"{self} was aborted; rejoin and build a new one"))

    def close(self) -> None:
        """Leave the group: pending works end with GroupClosed, peers see us go."""
        self._is_closed = True
        self._works.end(GroupClosed(f"{self} was closed; build a new one"))
        self._works.join(_CLOSE_S)
        self._latch.close()

    def _submit(self, text: str, job: Callable[[float], None]) -> Work:
        if self._is_closed:
            raise GroupClosed(f"{self} was closed; build a new one")
        # The clock starts when the collective's turn comes, not while it waits in line.
        return self._works.submit(text, lambda: job(time.monotonic() + self._timeout_s))

    def _all_reduce(self, text: str, array: AnyArray, op: ReduceOp, deadline: float) -> None:
        flat = _flatten(array)
        if flat.nbytes <= _ONE_ROUND_BYTES:
            self._reduce_slice(text, flat, [slice(None)] * self.size, op, deadline)
        else:
            cuts = slices(flat.size, self.size)
            self._reduce_slice(text, flat, cuts, op, deadline)
            self._gather_slices(text, flat, cuts, deadline)
        _put_back(flat, array)

    def _reduce_slice(
        self, text: str, flat: AnyArray, cuts: Sequence[slice], op: ReduceOp, deadline: float
    ) -> None:
        """Send each peer its cut, and reduce ours in place."""
        own = flat[cuts[self.rank]]
        received = self._borrow(own.nbytes * (self.size - 1)).view(flat.dtype)
        parts = iter(received.reshape(self.size - 1, own.size))
        contributions = [own if r == self.rank else next(parts) for r in range(self.size)]
        outgoing = {r: _bytes(flat[cuts[r]]) for r in self._links}
        incoming = {r: _bytes(contributions[r]) for r in self._links}
        self._exchange.run(text, outgoing, incoming, deadline)
        reduce_in_order(contributions, op, out=own)

    def _gather_slices(
        self, text: str, flat: AnyArray, cuts: Sequence[slice], deadline: float
    ) -> None:
        own = _bytes(flat[cuts[self.rank]])
        incoming = {r: _bytes(flat[cuts[r]]) for r in self._links}
        self._exchange.run(text, dict.fromkeys(self._links, own), incoming, deadline)

    def _broadcast(self, text: str, array: AnyArray, root: int, deadline: float) -> None:
        flat = _flatten(array)
        if self.rank == root:
            self._exchange.run(text, dict.fromkeys(self._links, _bytes(flat)), {}, deadline)
            return
        self._exchange.run(text, {}, {root: _bytes(flat)}, deadline)
        _put_back(flat, array)

    def _all_gather(
        self, text: str, outputs: Sequence[AnyArray], array: AnyArray, deadline: float
    ) -> None:
        own = dict.fromkeys(self._links, _bytes(_flatten(array)))
        received = {r: _flatten(outputs[r]) for r in self._links}
        incoming = {r: _bytes(flat) for r, flat in received.items()}
        self._exchange.run(text, own, incoming, deadline)
        for r, flat in received.items():
            _put_back(flat, outputs[r])
        outputs[self.rank][...] = array

    def _borrow(self, count: int) -> AnyArray:
        """Return scratch bytes that live until the next call: fresh pages cost more."""
        if self._scratch.size < count:
            self._scratch = np.empty(count, np.uint8)
        return self._scratch[:count]

    def _leave(self) -> None:
        kind, about = _reason(self._latch.error)
        self._exchange.leave(kind, self.rank if about is None else about, _FAREWELL_S)


def _flatten(array: AnyArray) -> AnyArray:
    """Return the values as one contiguous run: a view if they are one already."""
    return np.ascontiguousarray(array).reshape(-1)


def _put_back(flat: AnyArray, array: AnyArray) -> None:
    """Copy the result of a flattened array back, if flattening made a copy."""
    if not np.may_share_memory(flat, array):
        array[...] = flat.reshape(array.shape)


def _bytes(flat: AnyArray) -> memoryview:
    # Through uint8, because memoryview knows no bfloat16.
    return flat.view(np.uint8).data


def _reason(error: Exception | None) -> tuple[Kind, int | None]:
    """Return what to tell the peers about our end, and which rank it is about."""
    match error:
        case PeerLost(rank=rank):
            return Kind.PEER_LOST, rank
        case CollectiveTimeout(ranks=ranks):
            return Kind.TIMED_OUT, ranks[0] if ranks else None
        case CollectiveMismatch():
            return Kind.MISMATCH, None
        case GroupClosed():
            return Kind.CLOSED, None
        case _:
            return Kind.ABORTED, None

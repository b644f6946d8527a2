"""The process group over plain TCP sockets: a full mesh, one connection for each pair.

Where several ranks share a host they also share memory, and big all-reduces cross the network once
for each host.
"""

from collections.abc import Mapping, Sequence
from typing import final

import numpy.typing as npt

from gradmesh.sdk.transport.lane.handshake import host_identity
from gradmesh.trainer.process_group.abort_signal import AbortSignal
from gradmesh.trainer.process_group.collective import Collectives
from gradmesh.trainer.process_group.host_group import HostProcessGroup
from gradmesh.trainer.process_group.message import shutdown_reason
from gradmesh.trainer.process_group.process_group import AnyArray, ProcessGroup
from gradmesh.trainer.process_group.shm.host_peers import HostPeers
from gradmesh.trainer.process_group.store import PrefixStore, Store
from gradmesh.trainer.process_group.tcp.handshake import RankIdentity
from gradmesh.trainer.process_group.tcp.hierarchical import HierarchicalCollectives, ranks_by_host
from gradmesh.trainer.process_group.tcp.link import PeerLink
from gradmesh.trainer.process_group.tcp.rendezvous import (
    Endpoint,
    connect_mesh,
    share_hosts,
    share_secret,
)
from gradmesh.trainer.process_group.tcp.transport import SocketTransport
from gradmesh.trainer.process_group.validation import check_root

_FAREWELL_S = 0.5


@final
class TcpProcessGroup(HostProcessGroup):
    """Ranks joined by TCP. Build it with `connect`; use it from any thread.

    Args:
        links: A link to every other rank, by rank.
        identity: Who we are.
        timeout_s: Longest time one collective may take.
        store: Where sub-groups meet.
        endpoint: Where sub-groups listen.
        latch: Holds the group's end.
        neighbours: The ranks of this host, if they share memory.
        blocks: The ranks of each host then, in order.
    """

    def __init__(
        self,
        links: Mapping[int, PeerLink],
        identity: RankIdentity,
        timeout_s: float,
        store: Store,
        endpoint: Endpoint,
        latch: AbortSignal,
        neighbours: HostPeers | None = None,
        blocks: Sequence[range] = (),
    ) -> None:
        self._links = links
        self._identity = identity
        self._store = store
        self._endpoint = endpoint
        self._neighbours = neighbours
        self._rounds = SocketTransport(links, latch)
        rank, size = identity.rank, identity.world_size
        collectives = Collectives(rank, size, self._rounds)
        if neighbours is not None:
            collectives = HierarchicalCollectives(rank, blocks, self._rounds, neighbours.team)
        super().__init__(rank, size, timeout_s, latch, collectives)

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
            rank: This process's rank.
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
        identity = RankIdentity(
            generation=generation, world_size=world_size, rank=rank, secret=secret
        )
        endpoint = endpoint or Endpoint()
        host = host_identity() if endpoint.host is None else endpoint.host
        blocks = ranks_by_host(share_hosts(store, rank, world_size, host, timeout_s))
        links = connect_mesh(store, identity, endpoint, timeout_s)
        latch = AbortSignal()
        if blocks is None:
            return cls(links, identity, timeout_s, store, endpoint, latch)
        (block,) = [block for block in blocks if rank in block]
        place = PrefixStore(store, f"host/{block.start}")
        try:
            neighbours = HostPeers(place, generation, rank - block.start, block, timeout_s, latch)
        except BaseException:
            for link in links.values():
                link.close()
            raise
        return cls(links, identity, timeout_s, store, endpoint, latch, neighbours, blocks)

    @property
    def backend(self) -> str:
        """Return "tcp"."""
        return "tcp"

    @property
    def bytes_moved(self) -> int:
        """Bytes this rank has sent and received so far, headers included."""
        return sum(link.bytes_moved for link in self._links.values())

    def __repr__(self) -> str:
        who = self._identity
        return f"TcpProcessGroup(rank={who.rank}/{who.world_size}, generation={who.generation})"

    def _connect_sub_group(self, name: str, rank: int, parents: Sequence[int]) -> ProcessGroup:
        return TcpProcessGroup.connect(
            PrefixStore(self._store, f"sub_group/{name}"),
            generation=self._identity.generation,
            rank=rank,
            world_size=len(parents),
            timeout_s=self._timeout_s,
            endpoint=self._endpoint,
        )

    def empty(self, shape: int | Sequence[int], dtype: npt.DTypeLike) -> AnyArray:
        """Return memory that the ranks of this host share, if there are several."""
        if self._neighbours is None:
            return super().empty(shape, dtype)
        sizes = shape if isinstance(shape, int) else tuple(shape)
        return self._neighbours.team.heap.empty(sizes, dtype)

    def _interrupt(self) -> None:
        if self._neighbours is not None:
            self._neighbours.team.interrupt()

    def _leave(self) -> None:
        kind, about = shutdown_reason(self._latch.error, self.rank)
        if self._neighbours is not None:
            self._neighbours.leave(kind, about)
        self._rounds.leave(kind, about, _FAREWELL_S)
        if self._neighbours is not None:
            self._neighbours.close()

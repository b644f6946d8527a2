"""The process group over plain TCP sockets: a full mesh, one connection for each pair.

If several ranks share a host they also share memory, and a big all-reduce crosses the network once
for each host.
"""

from collections.abc import Mapping, Sequence
from typing import final

import numpy.typing as npt

from gradmesh.sdk.transport.lane.handshake import host_identity
from gradmesh.trainer.process_group.abort_signal import AbortSignal
from gradmesh.trainer.process_group.collective import Collectives
from gradmesh.trainer.process_group.hierarchical import HierarchicalCollectives, ranks_by_host
from gradmesh.trainer.process_group.host_group import HostProcessGroup
from gradmesh.trainer.process_group.message import shutdown_reason
from gradmesh.trainer.process_group.peer.handshake import RankIdentity
from gradmesh.trainer.process_group.peer.link import PeerLink
from gradmesh.trainer.process_group.peer.rendezvous import (
    Endpoint,
    connect_mesh,
    share_hosts,
    share_secret,
)
from gradmesh.trainer.process_group.peer.transport import SocketTransport
from gradmesh.trainer.process_group.process_group import AnyArray, ProcessGroup
from gradmesh.trainer.process_group.shm.host_peers import HostPeers
from gradmesh.trainer.process_group.store import PrefixStore, Store
from gradmesh.trainer.process_group.validation import check_root

_SHUTDOWN_S = 0.5


@final
class TcpProcessGroup(HostProcessGroup):
    """A process group over TCP; built by `connect`, thread-safe.

    Args:
        links: A link to every other rank, by rank.
        identity: This process's identity.
        timeout_s: Longest time one collective may take.
        store: Rendezvous store of sub-groups.
        endpoint: The endpoint of sub-groups, too.
        abort_signal: Holds the error that ends the group.
        host_peers: The ranks of this host, if they share memory.
        blocks: The ranks of each host then, in order.
    """

    def __init__(
        self,
        links: Mapping[int, PeerLink],
        identity: RankIdentity,
        timeout_s: float,
        store: Store,
        endpoint: Endpoint,
        abort_signal: AbortSignal,
        host_peers: HostPeers | None = None,
        blocks: Sequence[range] = (),
    ) -> None:
        self._links = links
        self._identity = identity
        self._store = store
        self._endpoint = endpoint
        self._host_peers = host_peers
        self._transport = SocketTransport(links, abort_signal)
        rank, size = identity.rank, identity.world_size
        collectives = Collectives(rank, size, self._transport)
        if host_peers is not None:
            collectives = HierarchicalCollectives(rank, blocks, self._transport, host_peers.ring)
        super().__init__(rank, size, timeout_s, abort_signal, collectives)

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
        name: str = "",
    ) -> "TcpProcessGroup":
        """Connect to the other ranks of the generation and return the group.

        Args:
            store: The generation's store, shared by its ranks.
            generation: The generation of the group.
            rank: This process's rank.
            world_size: Number of ranks.
            timeout_s: Longest time to connect, and for one collective later.
            endpoint: Where to listen; loopback if None.
            name: Name of a sub-group.

        Raises:
            CollectiveTimeout: A rank did not connect in time.
            PeerLost: A rank cannot be reached.
            HandshakeRefused: A rank is in another generation.
        """
        check_root(rank, world_size)
        secret = share_secret(store, rank, timeout_s)
        identity = RankIdentity(
            generation=generation, world_size=world_size, rank=rank, secret=secret, group=name
        )
        endpoint = endpoint or Endpoint()
        host = host_identity() if endpoint.host is None else endpoint.host
        blocks = ranks_by_host(share_hosts(store, rank, world_size, host, timeout_s))
        links = connect_mesh(store, identity, endpoint, timeout_s)
        abort_signal = AbortSignal()
        if blocks is None:
            return cls(links, identity, timeout_s, store, endpoint, abort_signal)
        (block,) = [block for block in blocks if rank in block]
        host_store = PrefixStore(store, f"host/{block.start}")
        try:
            host_peers = HostPeers(
                host_store, generation, rank - block.start, block, timeout_s, abort_signal
            )
        except BaseException:
            for link in links.values():
                link.close()
            raise
        return cls(links, identity, timeout_s, store, endpoint, abort_signal, host_peers, blocks)

    @property
    def backend(self) -> str:
        """Return "tcp"."""
        return "tcp"

    @property
    def bytes_moved(self) -> int:
        """Bytes this rank has sent and received so far, headers included."""
        return sum(link.bytes_moved for link in self._links.values())

    def __repr__(self) -> str:
        own = self._identity
        return f"TcpProcessGroup(rank={own.rank}/{own.world_size}, generation={own.generation})"

    def _connect_sub_group(self, name: str, rank: int, parents: Sequence[int]) -> ProcessGroup:
        return TcpProcessGroup.connect(
            PrefixStore(self._store, f"sub_group/{name}"),
            generation=self._identity.generation,
            rank=rank,
            world_size=len(parents),
            timeout_s=self._timeout_s,
            endpoint=self._endpoint,
            name=f"{self._identity.group}/{name}",
        )

    def empty(self, shape: int | Sequence[int], dtype: npt.DTypeLike) -> AnyArray:
        """Return memory shared by the ranks of this host, if there are several."""
        if self._host_peers is None:
            return super().empty(shape, dtype)
        sizes = shape if isinstance(shape, int) else tuple(shape)
        return self._host_peers.ring.heap.empty(sizes, dtype)

    def _interrupt(self) -> None:
        if self._host_peers is not None:
            self._host_peers.ring.interrupt()

    def _leave(self) -> None:
        kind, about = shutdown_reason(self._abort_signal.error, self.rank)
        if self._host_peers is not None:
            self._host_peers.leave(kind, about)
        self._transport.leave(kind, about, _SHUTDOWN_S)
        if self._host_peers is not None:
            self._host_peers.close()

"""The process group of ranks on one host, in shared memory."""

from collections.abc import Sequence
from typing import final

import numpy.typing as npt

from gradmesh.trainer.process_group.abort_signal import AbortSignal
from gradmesh.trainer.process_group.host_group import HostProcessGroup
from gradmesh.trainer.process_group.message import shutdown_reason
from gradmesh.trainer.process_group.peer.transport import SocketTransport
from gradmesh.trainer.process_group.process_group import AnyArray, ProcessGroup
from gradmesh.trainer.process_group.shm.collective import SharedCollectives
from gradmesh.trainer.process_group.shm.host_peers import HostPeers
from gradmesh.trainer.process_group.store import PrefixStore, Store
from gradmesh.trainer.process_group.validation import check_root

_SHUTDOWN_S = 0.5


@final
class ShmProcessGroup(HostProcessGroup):
    """A process group of one host, over shared memory; built by `connect`, thread-safe.

    Messages between two ranks go through unix sockets, everything else through shared memory.
    A closed socket also shows that a rank is gone.

    Args:
        host_peers: The connected ranks.
        abort_signal: Holds the error that ends the group.
        timeout_s: Longest time one collective may take.
        store: Rendezvous store of sub-groups.
    """

    def __init__(
        self, host_peers: HostPeers, abort_signal: AbortSignal, timeout_s: float, store: Store
    ) -> None:
        self._host_peers = host_peers
        self._ring = host_peers.ring
        self._links = host_peers.links
        self._identity = host_peers.identity
        self._store = store
        self._bytes_shared = 0
        self._transport = SocketTransport(self._links, abort_signal)
        collectives = SharedCollectives(self._ring, self._transport, self._count)
        super().__init__(self._ring.rank, self._ring.size, timeout_s, abort_signal, collectives)

    @classmethod
    def connect(
        cls, store: Store, *, generation: int, rank: int, world_size: int, timeout_s: float
    ) -> "ShmProcessGroup":
        """Connect to the other ranks of the generation and return the group.

        Args:
            store: The generation's store, shared by its ranks.
            generation: The generation of the group.
            rank: This process's rank.
            world_size: Number of ranks, all on this host.
            timeout_s: Longest time to connect, and for one collective later.

        Raises:
            CollectiveTimeout: A rank did not connect in time.
            PeerLost: A rank cannot be reached, as when it is on another host.
            HandshakeRefused: A rank is in another generation.
        """
        check_root(rank, world_size)
        abort_signal = AbortSignal()
        host_peers = HostPeers(store, generation, rank, range(world_size), timeout_s, abort_signal)
        return cls(host_peers, abort_signal, timeout_s, store)

    @property
    def backend(self) -> str:
        """Return "shm"."""
        return "shm"

    @property
    def bytes_moved(self) -> int:
        """Bytes moved between this rank's memory and that of others so far."""
        return self._bytes_shared + sum(link.bytes_moved for link in self._links.values())

    def __repr__(self) -> str:
        own = self._identity
        return f"ShmProcessGroup(rank={own.rank}/{own.world_size}, generation={own.generation})"

    def empty(self, shape: int | Sequence[int], dtype: npt.DTypeLike) -> AnyArray:
        """Return shared memory: all_reduce works on it in place, without a copy."""
        return self._ring.heap.empty(shape if isinstance(shape, int) else tuple(shape), dtype)

    def _count(self, nbytes: int) -> None:
        self._bytes_shared += nbytes

    def _connect_sub_group(self, name: str, rank: int, parents: Sequence[int]) -> ProcessGroup:
        return ShmProcessGroup.connect(
            PrefixStore(self._store, f"sub_group/{name}"),
            generation=self._identity.generation,
            rank=rank,
            world_size=len(parents),
            timeout_s=self._timeout_s,
        )

    def _interrupt(self) -> None:
        self._ring.interrupt()

    def _leave(self) -> None:
        kind, about = shutdown_reason(self._abort_signal.error, self.rank)
        self._host_peers.leave(kind, about)
        self._transport.leave(kind, about, _SHUTDOWN_S)

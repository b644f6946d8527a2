"""The process group of ranks on one host, in shared memory."""

from collections.abc import Sequence
from typing import final

import numpy.typing as npt

from gradmesh.trainer.process_group.abort_signal import AbortSignal
from gradmesh.trainer.process_group.host_group import HostProcessGroup
from gradmesh.trainer.process_group.message import shutdown_reason
from gradmesh.trainer.process_group.process_group import AnyArray, ProcessGroup
from gradmesh.trainer.process_group.shm.collective import SharedCollectives
from gradmesh.trainer.process_group.shm.host_peers import HostPeers
from gradmesh.trainer.process_group.store import PrefixStore, Store
from gradmesh.trainer.process_group.tcp.transport import SocketTransport
from gradmesh.trainer.process_group.validation import check_root

_FAREWELL_S = 0.5


@final
class ShmProcessGroup(HostProcessGroup):
    """Ranks of one host. Build it with `connect`; use it from any thread.

    Messages between two ranks go through unix sockets, all else through memory that all have
    mapped. The sockets also tell when a rank is gone.

    Args:
        neighbours: The ranks.
        latch: Holds the group's end.
        timeout_s: Longest time one collective may take.
        store: Where sub-groups meet.
    """

    def __init__(
        self, neighbours: HostPeers, latch: AbortSignal, timeout_s: float, store: Store
    ) -> None:
        self._neighbours = neighbours
        self._team = neighbours.team
        self._links = neighbours.links
        self._identity = neighbours.identity
        self._store = store
        self._bytes_shared = 0
        self._rounds = SocketTransport(self._links, latch)
        collectives = SharedCollectives(self._team, self._rounds, self._count)
        super().__init__(self._team.rank, self._team.size, timeout_s, latch, collectives)

    @classmethod
    def connect(
        cls, store: Store, *, generation: int, rank: int, world_size: int, timeout_s: float
    ) -> "ShmProcessGroup":
        """Meet the other ranks of the generation and return the group.

        Args:
            store: The generation's store, shared by its ranks.
            generation: The membership the group belongs to.
            rank: This process's rank.
            world_size: How many ranks come, all on this host.
            timeout_s: Longest time to meet, and for one collective later.

        Raises:
            CollectiveTimeout: A rank did not come in time.
            PeerLost: A rank cannot be reached, as when it is on another host.
            HandshakeRefused: A rank is in another generation.
        """
        check_root(rank, world_size)
        latch = AbortSignal()
        neighbours = HostPeers(store, generation, rank, range(world_size), timeout_s, latch)
        return cls(neighbours, latch, timeout_s, store)

    @property
    def backend(self) -> str:
        """Return "shm"."""
        return "shm"

    @property
    def bytes_moved(self) -> int:
        """Bytes that crossed between this rank's memory and that of others so far."""
        return self._bytes_shared + sum(link.bytes_moved for link in self._links.values())

    def __repr__(self) -> str:
        who = self._identity
        return f"ShmProcessGroup(rank={who.rank}/{who.world_size}, generation={who.generation})"

    def empty(self, shape: int | Sequence[int], dtype: npt.DTypeLike) -> AnyArray:
        """Return shared memory: all_reduce works on it in place, without a copy."""
        return self._team.heap.empty(shape if isinstance(shape, int) else tuple(shape), dtype)

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
        self._team.interrupt()

    def _leave(self) -> None:
        kind, about = shutdown_reason(self._latch.error, self.rank)
        self._neighbours.leave(kind, about)
        self._rounds.leave(kind, about, _FAREWELL_S)

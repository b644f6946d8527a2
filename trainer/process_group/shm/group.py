"""The process group of ranks on one host, in shared memory."""

import select
from collections.abc import Mapping, Sequence
from typing import final

import numpy.typing as npt

from gradmesh.trainer.process_group.argument import check_root
from gradmesh.trainer.process_group.farewell import peer_lost, reason_of
from gradmesh.trainer.process_group.host_group import HostProcessGroup
from gradmesh.trainer.process_group.latch import Latch
from gradmesh.trainer.process_group.process_group import AnyArray, ProcessGroup
from gradmesh.trainer.process_group.shm import kernel
from gradmesh.trainer.process_group.shm.collective import SharedCollectives
from gradmesh.trainer.process_group.shm.memory import Memory
from gradmesh.trainer.process_group.shm.rendezvous import share_memory
from gradmesh.trainer.process_group.shm.team import Team
from gradmesh.trainer.process_group.store import PrefixStore, Store
from gradmesh.trainer.process_group.tcp.exchange import Exchange
from gradmesh.trainer.process_group.tcp.handshake import Identity
from gradmesh.trainer.process_group.tcp.link import Link
from gradmesh.trainer.process_group.tcp.rendezvous import connect_mesh, share_secret

_FAREWELL_S = 0.5
_GONE = select.POLLHUP | select.POLLERR | select.POLLNVAL


@final
class ShmProcessGroup(HostProcessGroup):
    """Ranks of one host. Build it with `connect`; use it from any thread.

    Messages between two ranks go through unix sockets, all else through memory that all have
    mapped. The sockets also tell when a rank is gone.

    Args:
        links: A unix socket to every other rank, by rank.
        memories: Every rank's memory.
        identity: Who we are.
        timeout_s: Longest time one collective may take.
        store: Where sub-groups meet.
    """

    def __init__(
        self,
        links: Mapping[int, Link],
        memories: Sequence[Memory],
        identity: Identity,
        timeout_s: float,
        store: Store,
    ) -> None:
        self._links = links
        self._identity = identity
        self._store = store
        self._bytes_shared = 0
        latch = Latch()
        self._rounds = Exchange(links, latch)
        names = [links[r].address if r in links else "here" for r in range(identity.world_size)]
        self._team = Team(identity.rank, memories, latch, self._look, names)
        collectives = SharedCollectives(self._team, self._rounds.run, self._count)
        super().__init__(identity.rank, identity.world_size, timeout_s, latch, collectives)

    @classmethod
    def connect(
        cls, store: Store, *, generation: int, rank: int, world_size: int, timeout_s: float
    ) -> "ShmProcessGroup":
        """Meet the other ranks of the generation and return the group.

        Args:
            store: The generation's store, shared by its ranks.
            generation: The membership the group belongs to.
            rank: This process's place.
            world_size: How many ranks come, all on this host.
            timeout_s: Longest time to meet, and for one collective later.

        Raises:
            CollectiveTimeout: A rank did not come in time.
            PeerLost: A rank cannot be reached, as when it is on another host.
            HandshakeRefused: A rank is in another generation.
        """
        check_root(rank, world_size)
        kernel.warm_up()
        secret = share_secret(store, rank, timeout_s)
        identity = Identity(generation=generation, world_size=world_size, rank=rank, secret=secret)
        links = connect_mesh(store, identity, None, timeout_s)
        try:
            memories = share_memory(rank, world_size, links, timeout_s)
        except BaseException:
            for link in links.values():
                link.close()
            raise
        return cls(links, memories, identity, timeout_s, store)

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

    def _look(self, rank: int) -> None:
        """Raise if a rank's socket says that it is gone."""
        poll = select.poll()
        poll.register(self._links[rank], 0)
        if any(event & _GONE for _, event in poll.poll(0)):
            raise peer_lost(rank, self._links[rank].address, "it is gone")

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
        kind, about = reason_of(self._latch.error, self.rank)
        self._team.leave(kind, about)
        self._rounds.leave(kind, about, _FAREWELL_S)

"""The process group over plain TCP sockets: a full mesh, one connection for each pair."""

from collections.abc import Mapping, Sequence
from typing import final

from gradmesh.trainer.process_group.argument import check_root
from gradmesh.trainer.process_group.collective import Collectives
from gradmesh.trainer.process_group.farewell import reason_of
from gradmesh.trainer.process_group.host_group import HostProcessGroup
from gradmesh.trainer.process_group.latch import Latch
from gradmesh.trainer.process_group.process_group import ProcessGroup
from gradmesh.trainer.process_group.store import PrefixStore, Store
from gradmesh.trainer.process_group.tcp.exchange import Exchange
from gradmesh.trainer.process_group.tcp.handshake import Identity
from gradmesh.trainer.process_group.tcp.link import Link
from gradmesh.trainer.process_group.tcp.rendezvous import Endpoint, connect_mesh, share_secret

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
    """

    def __init__(
        self,
        links: Mapping[int, Link],
        identity: Identity,
        timeout_s: float,
        store: Store,
        endpoint: Endpoint,
    ) -> None:
        self._links = links
        self._identity = identity
        self._store = store
        self._endpoint = endpoint
        latch = Latch()
        self._rounds = Exchange(links, latch)
        collectives = Collectives(identity.rank, identity.world_size, self._rounds.run)
        super().__init__(identity.rank, identity.world_size, timeout_s, latch, collectives)

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
        endpoint = endpoint or Endpoint()
        links = connect_mesh(store, identity, endpoint, timeout_s)
        return cls(links, identity, timeout_s, store, endpoint)

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

    def _leave(self) -> None:
        self._rounds.leave(*reason_of(self._latch.error, self.rank), _FAREWELL_S)

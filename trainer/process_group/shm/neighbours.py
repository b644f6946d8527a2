"""The ranks of one host among those of a group: their sockets, memory and team."""

import select
from collections.abc import Mapping, Sequence
from typing import final

from gradmesh.trainer.process_group.farewell import Kind, peer_lost
from gradmesh.trainer.process_group.latch import Latch
from gradmesh.trainer.process_group.shm import kernel
from gradmesh.trainer.process_group.shm.rendezvous import share_memory
from gradmesh.trainer.process_group.shm.team import Team
from gradmesh.trainer.process_group.store import Store
from gradmesh.trainer.process_group.tcp.handshake import Identity
from gradmesh.trainer.process_group.tcp.link import Link
from gradmesh.trainer.process_group.tcp.rendezvous import connect_mesh, share_secret

_GONE = select.POLLHUP | select.POLLERR | select.POLLNVAL


@final
class Neighbours:
    """Ranks of one host that share memory; the sockets tell when one is gone.

    Args:
        store: Where they meet, and nobody else.
        generation: The membership they belong to.
        rank: This process's rank among them.
        ranks: What errors call each of them.
        timeout_s: Longest time to meet.
        latch: Ends waits early when it trips.

    Attributes:
        team: Where they meet in shared memory.
        links: A unix socket to every other one, by its place.
        identity: Who we are among them.
    """

    def __init__(
        self,
        store: Store,
        generation: int,
        rank: int,
        ranks: Sequence[int],
        timeout_s: float,
        latch: Latch,
    ) -> None:
        kernel.warm_up()
        secret = share_secret(store, rank, timeout_s)
        self.identity = Identity(
            generation=generation, world_size=len(ranks), rank=rank, secret=secret
        )
        self.links: Mapping[int, Link] = connect_mesh(store, self.identity, None, timeout_s)
        try:
            memories = share_memory(rank, len(ranks), self.links, timeout_s)
        except BaseException:
            self.close()
            raise
        self._ranks = ranks
        names = [self.links[r].address if r in self.links else "here" for r in range(len(ranks))]
        self.team = Team(rank, memories, latch, self._look, names, ranks)

    def leave(self, kind: Kind, about: int) -> None:
        """Tell the others why we come no more."""
        self.team.leave(kind, about)

    def close(self) -> None:
        """Close the sockets."""
        for link in self.links.values():
            link.close()

    def _look(self, place: int) -> None:
        """Raise if a rank's socket says that it is gone."""
        poll = select.poll()
        poll.register(self.links[place], 0)
        if any(event & _GONE for _, event in poll.poll(0)):
            raise peer_lost(self._ranks[place], self.links[place].address, "it is gone")

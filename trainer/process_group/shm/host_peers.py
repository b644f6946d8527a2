"""Connect the ranks of one host: unix sockets, memory shared by descriptors, and the slot ring."""

import os
import select
import socket
import time
from collections.abc import Mapping, Sequence
from typing import final

from gradmesh.trainer.errors import CollectiveTimeout
from gradmesh.trainer.process_group.abort_signal import AbortSignal
from gradmesh.trainer.process_group.message import MessageKind, peer_lost
from gradmesh.trainer.process_group.peer.handshake import RankIdentity
from gradmesh.trainer.process_group.peer.link import PeerLink
from gradmesh.trainer.process_group.peer.rendezvous import connect_mesh, share_secret
from gradmesh.trainer.process_group.shm import kernel
from gradmesh.trainer.process_group.shm.memory import SharedMemory
from gradmesh.trainer.process_group.shm.slot_ring import SlotRing
from gradmesh.trainer.process_group.store import Store

_TOKEN = b"M"


def share_memory(
    rank: int, size: int, links: Mapping[int, PeerLink], timeout_s: float
) -> list[SharedMemory]:
    """Create this rank's memory, exchange descriptors; return the memories of all ranks.

    Args:
        rank: This process's rank.
        size: Number of ranks.
        links: A unix socket to every other rank, not yet used.
        timeout_s: Longest time for the whole exchange.

    Raises:
        CollectiveTimeout: A rank did not send its descriptor in time.
        PeerLost: A rank left or died.
    """
    deadline = time.monotonic() + timeout_s
    memories: dict[int, SharedMemory] = {}
    fd = SharedMemory.create()
    try:
        memories[rank] = SharedMemory(fd)
        for peer, link in links.items():
            try:
                socket.send_fds(link.sock, [_TOKEN], [fd])
            except OSError as error:
                raise peer_lost(peer, link.address, str(error)) from error
        for peer, link in links.items():
            memories[peer] = _receive(link, deadline)
    finally:
        os.close(fd)
    return [memories[r] for r in range(size)]


def _receive(link: PeerLink, deadline: float) -> SharedMemory:
    poll = select.poll()
    poll.register(link, select.POLLIN)
    if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        raise CollectiveTimeout(
            f"rank {link.rank} did not share its memory in time; see whether it still runs,"
            " then rejoin",
            ranks=[link.rank],
        )
    try:
        token, fds, _, _ = socket.recv_fds(link.sock, len(_TOKEN), 1, socket.MSG_CMSG_CLOEXEC)
    except OSError as error:
        raise peer_lost(link.rank, link.address, str(error)) from error
    try:
        if token != _TOKEN or len(fds) != 1:
            raise peer_lost(link.rank, link.address, "it shared no memory")
        return SharedMemory(fds[0])
    except ValueError as error:
        raise peer_lost(link.rank, link.address, str(error)) from error
    finally:
        for fd in fds:
            os.close(fd)


_GONE = select.POLLHUP | select.POLLERR | select.POLLNVAL


@final
class HostPeers:
    """Connect ranks of one host that share memory; a closed socket shows that one is gone.

    Args:
        store: The rendezvous store of these ranks only.
        generation: The generation of the group.
        rank: This process's rank among them.
        ranks: Their ranks in the whole group, for errors.
        timeout_s: Longest time to connect.
        abort_signal: Ends waits early when it is set.

    Attributes:
        ring: Synchronises them in shared memory.
        links: A unix socket to each of the others, by rank.
        identity: This process's identity among them.
    """

    def __init__(
        self,
        store: Store,
        generation: int,
        rank: int,
        ranks: Sequence[int],
        timeout_s: float,
        abort_signal: AbortSignal,
    ) -> None:
        kernel.warm_up()
        secret = share_secret(store, rank, timeout_s)
        self.identity = RankIdentity(
            generation=generation, world_size=len(ranks), rank=rank, secret=secret
        )
        self.links: Mapping[int, PeerLink] = connect_mesh(store, self.identity, None, timeout_s)
        try:
            memories = share_memory(rank, len(ranks), self.links, timeout_s)
        except BaseException:
            self.close()
            raise
        self._ranks = ranks
        names = [self.links[r].address if r in self.links else "here" for r in range(len(ranks))]
        self.ring = SlotRing(rank, memories, abort_signal, self._check_alive, names, ranks)

    def leave(self, kind: MessageKind, about: int) -> None:
        """Publish the reason why this rank leaves."""
        self.ring.leave(kind, about)

    def close(self) -> None:
        """Close the sockets."""
        for link in self.links.values():
            link.close()

    def _check_alive(self, rank: int) -> None:
        """Raise if a rank's socket is closed."""
        poll = select.poll()
        poll.register(self.links[rank], 0)
        if any(event & _GONE for _, event in poll.poll(0)):
            raise peer_lost(self._ranks[rank], self.links[rank].address, "it is gone")

"""How the ranks of one host get at one another's memory: descriptors through their unix sockets."""

import os
import select
import socket
import time
from collections.abc import Mapping

from gradmesh.trainer.errors import CollectiveTimeout
from gradmesh.trainer.process_group.farewell import peer_lost
from gradmesh.trainer.process_group.shm.memory import Memory
from gradmesh.trainer.process_group.tcp.link import Link

_TOKEN = b"M"


def share_memory(rank: int, size: int, links: Mapping[int, Link], timeout_s: float) -> list[Memory]:
    """Make this rank's memory, swap descriptors with all others; return everybody's memory.

    Args:
        rank: This process's rank.
        size: How many ranks there are.
        links: A unix socket to every other rank, not yet used.
        timeout_s: For all of it.

    Raises:
        CollectiveTimeout: A rank did not send its descriptor in time.
        PeerLost: A rank left or died.
    """
    deadline = time.monotonic() + timeout_s
    memories: dict[int, Memory] = {}
    fd = Memory.create()
    try:
        memories[rank] = Memory(fd)
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


def _receive(link: Link, deadline: float) -> Memory:
    poll = select.poll()
    poll.register(link, select.POLLIN)
    if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        raise CollectiveTimeout(
            f"rank {link.rank} did not share its memory in time; see whether it still runs,"
            " then rejoin",
            ranks=[link.rank],
        )
    try:
        token, fds, _, _ = socket.recv_fds(link.sock, len(_TOKEN), 1)
    except OSError as error:
        raise peer_lost(link.rank, link.address, str(error)) from error
    if token != _TOKEN or not fds:
        raise peer_lost(link.rank, link.address, "it shared no memory")
    try:
        return Memory(fds[0])
    finally:
        os.close(fds[0])

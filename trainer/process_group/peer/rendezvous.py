"""Build the full mesh: publish the address, connect to lower ranks, accept higher ones."""

import contextlib
import json
import secrets
import socket
import struct
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from gradmesh.trainer.errors import CollectiveTimeout, HandshakeRefused, PeerLost
from gradmesh.trainer.process_group.peer.handshake import (
    SECRET_BYTES,
    RankIdentity,
    greet,
    welcome,
)
from gradmesh.trainer.process_group.peer.link import PeerLink
from gradmesh.trainer.process_group.store import Store, get_from_rank

_HANDSHAKE_S = 5.0
_MAX_HANDSHAKES = 64
_BACKLOG = 128


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The address at which a rank listens for its peers."""

    listen_host: str = "127.0.0.1"
    """Address to bind; the kernel chooses the port."""
    advertise_host: str = ""
    """Address published to peers; empty means `listen_host`."""
    host: str | None = None
    """Ranks with the same text share memory. None asks the kernel; "" shares with no rank."""


def share_hosts(store: Store, rank: int, world_size: int, host: str, timeout_s: float) -> list[str]:
    """Publish the host of this rank; return the hosts of all ranks."""
    deadline = time.monotonic() + timeout_s
    store.set(f"process_group/host/{rank}", b"@" + host.encode())
    keys = [f"process_group/host/{peer}" for peer in range(world_size)]
    found = [get_from_rank(store, key, peer, deadline) for peer, key in enumerate(keys)]
    return [value[1:].decode() for value in found]


def share_secret(store: Store, rank: int, timeout_s: float) -> bytes:
    """Return the group's secret: rank 0 creates it, the others read it."""
    if rank == 0:
        secret = secrets.token_bytes(SECRET_BYTES)
        store.set("process_group/secret", secret)
        return secret
    return get_from_rank(store, "process_group/secret", 0, time.monotonic() + timeout_s)


def connect_mesh(
    store: Store, identity: RankIdentity, endpoint: Endpoint | None, timeout_s: float
) -> Mapping[int, PeerLink]:
    """Return a link to every other rank.

    Args:
        store: The rendezvous store.
        identity: This process's identity.
        endpoint: Where to listen; None for a socket that only this host can reach.
        timeout_s: Longest time for all connections.

    Raises:
        CollectiveTimeout: A rank did not connect in time; names it.
        PeerLost: A rank published an address and cannot be reached there.
        HandshakeRefused: A rank is in another generation.
    """
    deadline = time.monotonic() + timeout_s
    with _listen(endpoint) as listener:
        address = _address(endpoint, listener)
        store.set(f"process_group/address/{identity.rank}", json.dumps(address).encode())
        higher = range(identity.rank + 1, identity.world_size)
        with contextlib.ExitStack() as undo:
            acceptor = _Acceptor(listener, identity, set(higher))
            undo.callback(acceptor.discard)
            acceptor.start()
            for rank in range(identity.rank):
                acceptor.links[rank] = _dial(store, identity, rank, deadline)
            acceptor.wait(deadline)
            undo.pop_all()
            acceptor.close()
    return dict(sorted(acceptor.links.items()))


@final
@dataclass(slots=True)
class _Acceptor:
    """Accept the higher ranks while this one connects to the lower ones."""

    listener: socket.socket
    identity: RankIdentity
    awaited: set[int]
    links: dict[int, PeerLink] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    """Guards awaited, links and _closed."""
    _closed: bool = False
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Start accepting, on a thread."""
        self._thread = threading.Thread(target=self._accept, name="rendezvous", daemon=True)
        self._thread.start()

    def wait(self, deadline: float) -> None:
        """Block until every awaited rank has connected."""
        with self._changed:
            left_s = max(0.0, deadline - time.monotonic())
            if not self._changed.wait_for(lambda: not self.awaited, left_s):
                missing = ", ".join(str(rank) for rank in sorted(self.awaited))
                raise CollectiveTimeout(
                    f"rank {missing} did not connect to rank {self.identity.rank} in time;"
                    " see whether it still runs, then rejoin",
                    ranks=sorted(self.awaited),
                )

    def close(self) -> None:
        """Stop accepting."""
        with self._changed:
            self._closed = True
        # A shutdown of the listener wakes its accept(); a close alone does not.
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        if self._thread is not None:
            self._thread.join(_HANDSHAKE_S)

    def discard(self) -> None:
        """Stop accepting and close the links made so far."""
        self.close()
        for link in self.links.values():
            link.close()

    def _accept(self) -> None:
        # Each connection gets a thread, so that a silent one cannot delay the peers; beyond the
        # limit it waits in the kernel's backlog.
        handshakes = threading.Semaphore(_MAX_HANDSHAKES)
        while True:
            handshakes.acquire()
            try:
                sock, address = self.listener.accept()
            except OSError:
                return
            name = f"{address[0]}:{address[1]}" if address else _process(sock)
            threading.Thread(
                target=self._admit, args=(sock, name, handshakes), name="handshake", daemon=True
            ).start()

    def _admit(self, sock: socket.socket, address: str, handshakes: threading.Semaphore) -> None:
        try:
            rank = welcome(sock, self.identity, _HANDSHAKE_S)
        except OSError:
            sock.close()
            return
        finally:
            handshakes.release()
        with self._changed:
            if self._closed or rank not in self.awaited:
                sock.close()
                return
            self.links[rank] = PeerLink(sock, rank, address)
            self.awaited.remove(rank)
            self._changed.notify_all()


def _listen(endpoint: Endpoint | None) -> socket.socket:
    if endpoint is None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # The kernel chooses an abstract name, which is not in a file system.
        listener.bind("")
        listener.listen(_BACKLOG)
        return listener
    family = socket.AF_INET6 if ":" in endpoint.listen_host else socket.AF_INET
    return socket.create_server((endpoint.listen_host, 0), family=family, backlog=_BACKLOG)


def _address(endpoint: Endpoint | None, listener: socket.socket) -> list[str | int]:
    """Return the address of a listener as a JSON value."""
    if endpoint is None:
        return [listener.getsockname().hex()]
    return [endpoint.advertise_host or endpoint.listen_host, listener.getsockname()[1]]


def _dial(store: Store, identity: RankIdentity, rank: int, deadline: float) -> PeerLink:
    where = json.loads(get_from_rank(store, f"process_group/address/{rank}", rank, deadline))
    address = ":".join(map(str, where)) if len(where) > 1 else "this host"
    left_s = max(0.001, deadline - time.monotonic())
    try:
        sock = _connect(where, left_s)
    except OSError as error:
        raise _unreachable(rank, address, error) from error
    try:
        greet(sock, identity, rank, deadline - time.monotonic())
    except HandshakeRefused:
        sock.close()
        raise
    except OSError as error:
        sock.close()
        raise _unreachable(rank, address, error) from error
    return PeerLink(sock, rank, address if len(where) > 1 else _process(sock))


def _process(sock: socket.socket) -> str:
    """Return the name of the process at the other end of a unix socket."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return f"process {struct.unpack('3i', credentials)[0]} on this host"


def _connect(where: list[Any], timeout_s: float) -> socket.socket:
    if len(where) > 1:
        return socket.create_connection((where[0], where[1]), timeout=timeout_s)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_s)
        sock.connect(bytes.fromhex(where[0]))
    except BaseException:
        sock.close()
        raise
    return sock


def _unreachable(rank: int, address: str, error: OSError) -> PeerLost:
    return PeerLost(
        f"rank {rank} published the address {address} but cannot be reached there: {error};"
        " see whether it still runs and whether the network allows the connection, then rejoin",
        rank=rank,
        address=address,
    )

"""Build the full mesh: publish the address, connect to lower ranks, accept higher ones."""

import contextlib
import json
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

from gradmesh.sdk.process.network import SecurityConfig
from gradmesh.sdk.process.setting import ConfigError, Problem
from gradmesh.sdk.transport.lane.handshake import check_user
from gradmesh.sdk.transport.security import client_tls, server_tls
from gradmesh.trainer.errors import HandshakeRefused, PeerLost
from gradmesh.trainer.process_group.peer.acceptor import Acceptor, process_of
from gradmesh.trainer.process_group.peer.handshake import SECRET_BYTES, RankIdentity, greet
from gradmesh.trainer.process_group.peer.link import PeerLink
from gradmesh.trainer.process_group.store import Store, get_from_rank

# Room for strangers: a peer that finds the queue full tries again after a second.
_BACKLOG = 1024
# A rank that was crowded out by strangers connects again after this time.
_RETRY_S = 0.02


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
    security: SecurityConfig | None = None
    """Certificates; with TLS in it all connections are encrypted, on all ranks or on none."""

    def server_tls(self) -> Callable[[], ssl.SSLContext] | None:
        """Return what makes the TLS of accepted connections; None for plaintext.

        Raises:
            ConfigError: TLS is on and there is no certificate to show.
        """
        security = self.security
        if security is None or not security.tls:
            return None
        if security.tls_certificate_file is None:
            problem = "is missing; ranks of a process group show one once TLS is on"
            raise ConfigError([Problem("security.tls_certificate_file", problem)])

        def make() -> ssl.SSLContext:
            context = server_tls(security)
            assert context is not None  # for the type checker: there is a certificate
            # A rank that resumed a session would skip the check of its certificate.
            context.num_tickets = 0
            return context

        return make

    def client_tls(self) -> ssl.SSLContext | None:
        """Return the TLS of connections to other ranks; None for plaintext."""
        return None if self.security is None else client_tls(self.security)


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
            acceptor = Acceptor(
                listener, identity, set(higher), None if endpoint is None else endpoint.server_tls()
            )
            acceptor.start()
            undo.callback(acceptor.discard)
            for rank in range(identity.rank):
                acceptor.links[rank] = _dial(store, identity, endpoint, rank, deadline)
            acceptor.wait(deadline)
            undo.pop_all()
            acceptor.close()
    return dict(sorted(acceptor.links.items()))


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


def _dial(
    store: Store, identity: RankIdentity, endpoint: Endpoint | None, rank: int, deadline: float
) -> PeerLink:
    where = _read_address(get_from_rank(store, f"process_group/address/{rank}", rank, deadline))
    address = ":".join(map(str, where)) if len(where) > 1 else "this host"
    pause = threading.Event()
    while True:
        try:
            return _greet(where, identity, endpoint, rank, address, deadline)
        except HandshakeRefused:
            raise
        except OSError as error:
            # Strangers may crowd the listener until its backlog is full, or until our connection
            # is closed. Nothing listens behind a refused connection: that is final.
            final = not isinstance(error, (ConnectionResetError, BrokenPipeError, BlockingIOError))
            if final or time.monotonic() + _RETRY_S > deadline:
                raise _unreachable(rank, address, error) from error
        pause.wait(_RETRY_S)


def _greet(
    where: list[Any],
    identity: RankIdentity,
    endpoint: Endpoint | None,
    rank: int,
    address: str,
    deadline: float,
) -> PeerLink:
    sock = _connect(where, max(0.001, deadline - time.monotonic()))
    try:
        if endpoint is None:
            _check_user(sock, rank)
        tls = None if endpoint is None else endpoint.client_tls()
        named = None if tls is None else (tls, str(where[0]))
        sealed = greet(sock, identity, rank, deadline - time.monotonic(), named)
    except BaseException:
        sock.close()
        raise
    return PeerLink(sealed, rank, address if len(where) > 1 else process_of(sock))


def _check_user(sock: socket.socket, rank: int) -> None:
    try:
        check_user(sock)
    except ValueError as error:
        raise HandshakeRefused(f"the process that answers for rank {rank}: {error}") from error


def _read_address(raw: bytes) -> list[Any]:
    """Read the address that a rank published.

    Raises:
        HandshakeRefused: It is not an address.
    """
    try:
        match json.loads(raw):
            case [str(host), int(port)] if 0 < port < 1 << 16:
                return [host, port]
            case [str(name)]:
                return [bytes.fromhex(name)]
    except ValueError:
        pass
    raise HandshakeRefused("a rank published something that is not an address; rejoin")


def _connect(where: list[Any], timeout_s: float) -> socket.socket:
    if len(where) > 1:
        return socket.create_connection((where[0], where[1]), timeout=timeout_s)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_s)
        sock.connect(where[0])
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

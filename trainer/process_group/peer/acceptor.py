"""Accept the peers of higher rank, among any number of connections from strangers.

One thread serves all handshakes and blocks on none of them. A stranger costs a descriptor and one
HMAC. Beyond a number of unfinished handshakes the oldest of the busiest host is closed. So a peer
always gets in: it answers at once, and it connects again if it was closed before the verdict.
"""

import contextlib
import os
import selectors
import socket
import ssl
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import final

from gradmesh.sdk.transport.lane.handshake import check_user
from gradmesh.trainer.errors import CollectiveTimeout, HandshakeRefused
from gradmesh.trainer.process_group.peer.handshake import Newcomer, RankIdentity
from gradmesh.trainer.process_group.peer.link import PeerLink

HANDSHAKE_S = 5.0
"""Longest time of a handshake."""

_MAX_NEWCOMERS = 512
_ACCEPTED_AT_ONCE = 64
_OUT_OF_DESCRIPTORS_S = 0.05


@final
class Acceptor:
    """Accepts the higher ranks on a thread while this one connects to the lower ones.

    Args:
        listener: The listening socket.
        identity: This process's identity.
        awaited: The ranks to accept.
        tls: Returns how to encrypt a connection; None for plaintext.

    Attributes:
        links: The links made so far, by rank.
    """

    def __init__(
        self,
        listener: socket.socket,
        identity: RankIdentity,
        awaited: set[int],
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        self._listener = listener
        self._identity = identity
        self._tls = tls
        self._changed = threading.Condition()  # guards links, _awaited and _closed
        self.links: dict[int, PeerLink] = {}
        self._awaited = awaited
        self._closed = False
        # Unfinished handshakes, the time when each must have ended, and its host; oldest first.
        self._newcomers: dict[socket.socket, tuple[Newcomer, float, str]] = {}
        self._selector = selectors.DefaultSelector()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="rendezvous", daemon=True)

    def start(self) -> None:
        """Start accepting."""
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._thread.start()

    def wait(self, deadline: float) -> None:
        """Block until every awaited rank has connected.

        Raises:
            CollectiveTimeout: Some did not in time; names them.
        """
        with self._changed:
            left_s = max(0.0, deadline - time.monotonic())
            if not self._changed.wait_for(lambda: not self._awaited, left_s):
                missing = ", ".join(str(rank) for rank in sorted(self._awaited))
                raise CollectiveTimeout(
                    f"rank {missing} did not connect to rank {self._identity.rank} in time;"
                    " see whether it still runs, then rejoin",
                    ranks=sorted(self._awaited),
                )

    def close(self) -> None:
        """Stop accepting."""
        with self._changed:
            self._closed = True
        os.eventfd_write(self._wake, 1)
        self._thread.join()

    def discard(self) -> None:
        """Stop accepting and close the links made so far."""
        self.close()
        for link in self.links.values():
            link.close()

    def _run(self) -> None:
        try:
            while not self._closed:
                self._turn()
        finally:
            for sock in self._newcomers:
                sock.close()
            self._selector.close()
            os.close(self._wake)

    def _turn(self) -> None:
        ends = next(iter(self._newcomers.values()), None)
        wait_s = None if ends is None else max(0.0, ends[1] - time.monotonic())
        for key, _ in self._selector.select(wait_s):
            sock = key.fileobj
            if sock is self._listener:
                self._accept()
            elif isinstance(sock, socket.socket) and sock in self._newcomers:
                self._receive(sock)
        self._drop_late()

    def _drop_late(self) -> None:
        now = time.monotonic()
        while self._newcomers:
            oldest, (_, ends_at, _) = next(iter(self._newcomers.items()))
            if ends_at > now:
                return
            self._drop(oldest)

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                sock, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:
                # Out of descriptors: a handshake gives one back.
                if self._newcomers:
                    self._drop(self._surplus())
                else:
                    time.sleep(_OUT_OF_DESCRIPTORS_S)
                return
            newcomer = Newcomer(self._identity, self._tls is not None)
            try:
                if sock.family == socket.AF_UNIX:
                    check_user(sock)
                sock.setblocking(False)
                sock.send(newcomer.challenge)
            except (OSError, ValueError):
                sock.close()
                continue
            if len(self._newcomers) >= _MAX_NEWCOMERS:
                self._drop(self._surplus())
            host = address[0] if address else ""
            self._newcomers[sock] = newcomer, time.monotonic() + HANDSHAKE_S, host
            self._selector.register(sock, selectors.EVENT_READ)

    def _surplus(self) -> socket.socket:
        """Return the oldest unfinished handshake of the host that has the most."""
        counts = Counter(host for _, _, host in self._newcomers.values())
        ((busiest, _),) = counts.most_common(1)
        return next(sock for sock, (_, _, host) in self._newcomers.items() if host == busiest)

    def _receive(self, sock: socket.socket) -> None:
        newcomer, _, _ = self._newcomers[sock]
        try:
            data = sock.recv(newcomer.missing)
            if not data:
                raise ConnectionResetError("it closed the connection")
            newcomer.receive(data)
            if newcomer.missing:
                return
            sock.send(newcomer.answer())
        except BlockingIOError:
            return
        except OSError:
            self._drop(sock)
            return
        if newcomer.rank < 0:
            self._drop(sock)
            return
        self._forget(sock)
        if self._tls is None:
            self._admit(sock, newcomer.rank, _name_of(sock))
            return
        # It has the secret, so there are few of them, and their certificates are worth checking.
        threading.Thread(
            target=self._seal, args=(sock, newcomer, self._tls), name="handshake", daemon=True
        ).start()

    def _seal(
        self, sock: socket.socket, newcomer: Newcomer, tls: Callable[[], ssl.SSLContext]
    ) -> None:
        name = _name_of(sock)
        try:
            sealed = newcomer.seal(sock, tls(), HANDSHAKE_S)
        except (OSError, HandshakeRefused):
            sock.close()
            return
        self._admit(sealed, newcomer.rank, name)

    def _admit(self, sock: socket.socket, rank: int, name: str) -> None:
        with self._changed:
            if self._closed or rank not in self._awaited:
                sock.close()
                return
            self.links[rank] = PeerLink(sock, rank, name)
            self._awaited.remove(rank)
            self._changed.notify_all()

    def _forget(self, sock: socket.socket) -> None:
        self._selector.unregister(sock)
        del self._newcomers[sock]

    def _drop(self, sock: socket.socket) -> None:
        self._forget(sock)
        # What was sent, such as a verdict, still arrives.
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_WR)
        sock.close()


def process_of(sock: socket.socket) -> str:
    """Return the name of the process at the other end of a unix socket."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return f"process {struct.unpack('3i', credentials)[0]} on this host"


def _name_of(sock: socket.socket) -> str:
    if sock.family == socket.AF_UNIX:
        return process_of(sock)
    try:
        host, port, *_ = sock.getpeername()
    except OSError:
        return "an address that is gone"
    return f"{host}:{port}"

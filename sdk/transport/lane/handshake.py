"""The handshake of a lane connection: how its two ends authenticate each other.

The client shows the secret that OpenLane returned. On a unix socket both ends check with the kernel
that they run as one user, and pass each other the memory that they write to.
"""

import functools
import hmac
import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

from gradmesh.protos import limits
from gradmesh.protos.errors import LimitExceeded
from gradmesh.protos.lane import VERSION
from gradmesh.protos.owner.v1 import owner_pb2 as pb
from gradmesh.sdk.transport.account import account_of
from gradmesh.sdk.transport.call import Caller
from gradmesh.sdk.transport.lane.arena import Arena, map_peer
from gradmesh.sdk.transport.lane.link import SMALL_BYTES, InlineLink, Link, ShmLink
from gradmesh.sdk.transport.lane.stream import ByteStream, LaneBroken, PlainStream, TlsStream

WIRE_KINDS = {"shm": pb.LANE_KIND_SHM, "tcp": pb.LANE_KIND_TCP}
"""The lanes that OpenLane negotiates, by the names of settings and metrics."""

KIND_NAMES = {number: name for name, number in WIRE_KINDS.items()}
"""Their names by their numbers in the contract."""

SECRET_BYTES = 32
HELLO_S = 5.0
"""Longest time the other end may take for its part of the handshake."""

_HELLO = struct.Struct(f"<4sH2x{SECRET_BYTES}s")
_WELCOME = struct.Struct("<4sH2x")
_MAGIC = b"GMLN"


@functools.cache
def host_identity() -> str:
    """Return a text that is equal for processes that reach each other's abstract unix sockets.

    It names the boot of the kernel and the network namespace; empty where they are unknown.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/net').readlink()}"
    except OSError:
        return ""


def stream_of(sock: socket.socket) -> ByteStream:
    """Return the stream of a socket that is connected and, where needed, encrypted."""
    import ssl

    return TlsStream(sock) if isinstance(sock, ssl.SSLSocket) else PlainStream(sock)


def _spinning_stream(sock: socket.socket) -> ByteStream:
    """Return the stream of a unix socket, whose other end answers within microseconds."""
    if len(os.sched_getaffinity(0)) == 1:
        # On one core a spin only keeps the other process from answering.
        return PlainStream(sock)
    # Imported here: a process without an shm lane does not load the compiler.
    from gradmesh.sdk.transport.lane.spin import SpinWait

    return PlainStream(sock, SpinWait(SMALL_BYTES))


def greet(sock: socket.socket, kind: str, secret: bytes, max_frame_bytes: int) -> Link:
    """Do the client's half of the handshake and return the link.

    Raises:
        OSError: The server does not answer, or breaks the protocol.
        ValueError: It cannot be trusted.
    """
    sock.settimeout(HELLO_S)
    hello = _HELLO.pack(_MAGIC, VERSION, secret)
    if kind != "shm":
        sock.sendall(hello)
        _check(_WELCOME.unpack(_read(sock, _WELCOME.size)))
        return InlineLink(stream_of(sock), max_frame_bytes, kind)
    check_user(sock)
    arena = Arena(max_frame_bytes, shared=True)
    try:
        socket.send_fds(sock, [hello], [arena.fd])
        welcome, fd = _receive_fd(sock, _WELCOME.size)
        try:
            _check(_WELCOME.unpack(welcome))
            peer = map_peer(fd, max_frame_bytes)
            return ShmLink(_spinning_stream(sock), arena, peer, max_frame_bytes)
        finally:
            os.close(fd)
    finally:
        arena.close_fd()


def welcome(
    sock: socket.socket,
    kind: str,
    admit: Callable[[bytes], Caller | None],
    max_frame_bytes: int,
) -> tuple[Link, Caller]:
    """Do the server's half of the handshake; return the link and the role of the client.

    Args:
        sock: The connection.
        kind: The lane, one of `WIRE_KINDS`.
        admit: Returns the role for which a secret was made, once; None for a wrong one.
        max_frame_bytes: Largest frame either way.

    Raises:
        OSError: The client is late, or breaks the protocol.
        ValueError: It cannot be trusted.
    """
    sock.settimeout(HELLO_S)
    if kind != "shm":
        caller = _admit(_read(sock, _HELLO.size), admit)
        sock.sendall(_WELCOME.pack(_MAGIC, VERSION))
        return InlineLink(stream_of(sock), max_frame_bytes, kind), caller
    check_user(sock)
    hello, fd = _receive_fd(sock, _HELLO.size)
    try:
        caller = _admit(hello, admit)
        peer = map_peer(fd, max_frame_bytes)
    finally:
        os.close(fd)
    arena = Arena(max_frame_bytes, shared=True)
    try:
        socket.send_fds(sock, [_WELCOME.pack(_MAGIC, VERSION)], [arena.fd])
        return ShmLink(_spinning_stream(sock), arena, peer, max_frame_bytes), caller
    finally:
        arena.close_fd()


def check_user(sock: socket.socket) -> None:
    """Check that the other end of a unix socket runs as our own user.

    Raises:
        ValueError: It runs as another.
    """
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", raw)
    if user != os.geteuid():
        raise ValueError(f"the other end runs as user {user}, this one as {os.geteuid()}")


def _admit(hello: bytes, admit: Callable[[bytes], Caller | None]) -> Caller:
    magic, version, secret = _HELLO.unpack(hello)
    _check((magic, version))
    caller = admit(secret)
    if caller is None:
        raise ValueError("the secret is wrong, used or too old")
    return caller


def _check(greeting: tuple[Any, ...]) -> None:
    if greeting != (_MAGIC, VERSION):
        raise LaneBroken("the other end uses another version of lanes")


def _read(sock: socket.socket, size: int) -> bytes:
    """Read exactly `size` bytes; the limit covers all of them, so a peer cannot trickle them."""
    data = b""
    until = time.monotonic() + HELLO_S
    while len(data) < size:
        sock.settimeout(max(0.001, until - time.monotonic()))
        part = sock.recv(size - len(data))
        if not part:
            raise LaneBroken("the other end closed the connection during the handshake")
        data += part
    return data


def _receive_fd(sock: socket.socket, size: int) -> tuple[bytes, int]:
    """Read `size` bytes and the one descriptor that arrives with them."""
    # Not inherited by a program that this process starts meanwhile.
    data, fds, flags, _ = socket.recv_fds(sock, size, 1, socket.MSG_CMSG_CLOEXEC)
    if len(fds) != 1 or len(data) != size or flags & socket.MSG_CTRUNC:
        for fd in fds:
            os.close(fd)
        raise LaneBroken("the other end closed the connection during the handshake")
    return data, fds[0]


_TTL_S = 10.0


@final
class LaneSecrets:
    """Secrets that open one connection each: a bounded number, valid for a few seconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards _open
        self._open: list[tuple[float, bytes, Caller]] = []

    def make(self, caller: Caller) -> bytes | None:
        """Return a new secret for a caller; None when it, or all together, have too many unused."""
        account = account_of(caller)
        now = time.monotonic()
        secret = secrets.token_bytes(SECRET_BYTES)
        with self._lock:
            self._open = [offer for offer in self._open if offer[0] > now]
            own = sum(account_of(offer[2]) == account for offer in self._open)
            try:
                limits.LANE_OFFERS.check(len(self._open), own, caller=account)
            except LimitExceeded:
                return None  # the caller goes on without a lane
            self._open.append((now + _TTL_S, secret, caller))
        return secret

    def take(self, shown: bytes) -> Caller | None:
        """Use a secret up and return the role it was made for; None if it is wrong."""
        now = time.monotonic()
        with self._lock:
            for index, (until, secret, caller) in enumerate(self._open):
                if hmac.compare_digest(secret, shown):
                    del self._open[index]
                    return caller if until > now else None
        return None

"""How the two ends of a lane's connection recognise each other.

The client shows the secret that OpenLane gave it; on a unix socket both ends belong to one user,
as the kernel tells, and pass each other the memory they write to.
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

from gradmesh.protos.lane import VERSION
from gradmesh.sdk.transport.call import CallerRole
from gradmesh.sdk.transport.lane.arena import Arena, map_peer
from gradmesh.sdk.transport.lane.link import SMALL, InlineLink, Link, ShmLink
from gradmesh.sdk.transport.lane.stream import ByteStream, LaneBroken, PlainStream, TlsStream

SECRET_BYTES = 32
HELLO_S = 5.0
"""How long the other end may take to say who it is."""

_HELLO = struct.Struct(f"<4sH2x{SECRET_BYTES}s")
_WELCOME = struct.Struct("<4sH2x")
_MAGIC = b"GMLN"


@functools.cache
def host_identity() -> str:
    """Return a text that is equal for processes that reach each other's abstract unix sockets.

    That is one boot of one kernel, and one network namespace; empty where it cannot be told.
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


def _eager_stream(sock: socket.socket) -> ByteStream:
    """Return the stream of a unix socket, whose other end answers within microseconds."""
    if len(os.sched_getaffinity(0)) == 1:
        # Only the turn of the other process can bring what we would look for.
        return PlainStream(sock)
    # Imported here: a process without such a lane does without the compiler.
    from gradmesh.sdk.transport.lane.spin import SpinWait

    return PlainStream(sock, SpinWait(SMALL))


def greet(sock: socket.socket, kind: str, secret: bytes, max_frame_bytes: int) -> Link:
    """Open a connection as its client.

    Raises:
        OSError: The server does not answer, or not as it should.
        ValueError: It is not to be trusted.
    """
    sock.settimeout(HELLO_S)
    hello = _HELLO.pack(_MAGIC, VERSION, secret)
    if kind == "tcp":
        sock.sendall(hello)
        _check(_WELCOME.unpack(_read(sock, _WELCOME.size)))
        return InlineLink(stream_of(sock), max_frame_bytes)
    check_user(sock)
    arena = Arena(max_frame_bytes, shared=True)
    try:
        socket.send_fds(sock, [hello], [arena.fd])
        welcome, fd = _receive_fd(sock, _WELCOME.size)
        try:
            _check(_WELCOME.unpack(welcome))
            return ShmLink(_eager_stream(sock), arena, map_peer(fd), max_frame_bytes)
        finally:
            os.close(fd)
    finally:
        arena.close_fd()


def welcome(
    sock: socket.socket,
    kind: str,
    admit: Callable[[bytes], CallerRole | None],
    max_frame_bytes: int,
) -> tuple[Link, CallerRole]:
    """Open a connection as its server; return it and who is at its other end.

    Args:
        sock: The connection.
        kind: "shm" or "tcp".
        admit: Takes the secret shown; returns whom it was made for, once.
        max_frame_bytes: Largest frame either way.

    Raises:
        OSError: The client does not speak in time, or not as it should.
        ValueError: It is not to be trusted.
    """
    sock.settimeout(HELLO_S)
    if kind == "tcp":
        caller = _admit(_read(sock, _HELLO.size), admit)
        sock.sendall(_WELCOME.pack(_MAGIC, VERSION))
        return InlineLink(stream_of(sock), max_frame_bytes), caller
    check_user(sock)
    hello, fd = _receive_fd(sock, _HELLO.size)
    try:
        caller = _admit(hello, admit)
        peer = map_peer(fd)
    finally:
        os.close(fd)
    arena = Arena(max_frame_bytes, shared=True)
    try:
        socket.send_fds(sock, [_WELCOME.pack(_MAGIC, VERSION)], [arena.fd])
        return ShmLink(_eager_stream(sock), arena, peer, max_frame_bytes), caller
    finally:
        arena.close_fd()


def check_user(sock: socket.socket) -> None:
    """Return if the other end of a unix socket runs as our own user.

    Raises:
        ValueError: It does not.
    """
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", raw)
    if user != os.geteuid():
        raise ValueError(f"the other end runs as user {user}, this one as {os.geteuid()}")


def _admit(hello: bytes, admit: Callable[[bytes], CallerRole | None]) -> CallerRole:
    magic, version, secret = _HELLO.unpack(hello)
    _check((magic, version))
    caller = admit(secret)
    if caller is None:
        raise ValueError("the secret is wrong, used or too old")
    return caller


def _check(greeting: tuple[Any, ...]) -> None:
    if greeting != (_MAGIC, VERSION):
        raise LaneBroken("the other end does not speak this version of lanes")


def _read(sock: socket.socket, size: int) -> bytes:
    """Read exactly `size` bytes; a peer that trickles them is cut off."""
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
    """Read `size` bytes and the one descriptor that comes with them."""
    data, fds, flags, _ = socket.recv_fds(sock, size, 1)
    if len(fds) != 1 or len(data) != size or flags & socket.MSG_CTRUNC:
        for fd in fds:
            os.close(fd)
        raise LaneBroken("the other end closed the connection during the handshake")
    return data, fds[0]


_TTL_S = 10.0
_MAX = 256


@final
class LaneSecrets:
    """Secrets given out and not yet used."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards _open
        self._open: list[tuple[float, bytes, CallerRole]] = []

    def make(self, caller: CallerRole) -> bytes | None:
        """Return a new secret for a caller; None when too many are waiting."""
        now = time.monotonic()
        secret = secrets.token_bytes(SECRET_BYTES)
        with self._lock:
            self._open = [offer for offer in self._open if offer[0] > now]
            if len(self._open) >= _MAX:
                return None
            self._open.append((now + _TTL_S, secret, caller))
        return secret

    def take(self, shown: bytes) -> CallerRole | None:
        """Return whom a secret was made for, and use it up; None if it is not good."""
        now = time.monotonic()
        with self._lock:
            for place, (until, secret, caller) in enumerate(self._open):
                if hmac.compare_digest(secret, shown):
                    del self._open[place]
                    return caller if until > now else None
        return None

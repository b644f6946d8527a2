"""Handshakes of lanes that must not open a connection, and must not cost one either."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct

from gradmesh.protos.lane import VERSION
from gradmesh.sdk.transport.channel import Channel
from tests.conformance.raw_lane import dial
from tests.fuzz.lane_connections import offer_of
from tests.fuzz.mutation import mutate

_HELLO = struct.Struct("<4sH2x32s")
_CLOSE_S = 30.0


def try_handshake(chance: random.Random, channel: Channel, kind: str) -> tuple[bytes, str | None]:
    """Do a bad handshake; return its bytes and what is wrong with the reaction, if anything."""
    offer = offer_of(channel, kind)
    good = _HELLO.pack(b"GMLN", VERSION, offer.secret)
    hello = good
    # On a unix socket a good hello may come with bad memory.
    if kind == "tcp" or chance.random() < 0.6:
        while hello == good:
            hello = mutate(chance, good) if chance.random() < 0.8 else chance.randbytes(40)
        hello = _different(good, hello)
    with dial(kind, offer.address) as sock:
        with contextlib.suppress(OSError):
            _send(chance, sock, kind, hello, is_good=hello == good)
            sock.shutdown(socket.SHUT_WR)
        sock.settimeout(_CLOSE_S)
        answer = b""
        try:
            answer = sock.recv(64)
        except TimeoutError:
            return hello, f"the server keeps a connection after a bad {kind} handshake"
        except OSError:
            pass
    return hello, f"the server welcomes a bad {kind} handshake" if answer else None


def _different(good: bytes, hello: bytes) -> bytes:
    """Return a hello that differs where it matters: the padding is ignored, bytes after it too."""
    checked = slice(0, 6), slice(8, _HELLO.size)
    if len(hello) >= len(good) and all(hello[part] == good[part] for part in checked):
        return bytes([hello[0] ^ 1]) + hello[1:]
    return hello


def _send(
    chance: random.Random, sock: socket.socket, kind: str, hello: bytes, *, is_good: bool
) -> None:
    if kind == "tcp":
        sock.sendall(hello)
        return
    fds = _bad_memory(chance)
    try:
        if fds:
            socket.send_fds(sock, [hello], fds)
        else:
            sock.sendall(hello)
    finally:
        for fd in fds:
            os.close(fd)


def _bad_memory(chance: random.Random) -> list[int]:
    """Return descriptors that are no sealed memory: none, several, or of another kind."""
    how = chance.randrange(5)
    if how == 0:
        return []
    if how == 1:
        return [os.open("/dev/null", os.O_RDWR)]
    if how == 2:
        return list(os.pipe())
    fd = os.memfd_create("fuzz", os.MFD_ALLOW_SEALING)
    if how == 3:
        os.ftruncate(fd, chance.choice((0, 1, 4096, 1 << 37)))
    return [fd]

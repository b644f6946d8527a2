"""HTTP/2 by hand, for what no client library sends: headers without a body, many streams."""

import contextlib
import socket
import struct
from collections.abc import Iterator
from typing import IO

from gradmesh.sdk.process.network import split

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADERS, RST_STREAM, SETTINGS = 1, 3, 4
_END_HEADERS, _ACK = 4, 1


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def connect(address: str) -> socket.socket:
    """Open a connection of HTTP/2."""
    sock = socket.create_connection(split(address), timeout=120)
    sock.sendall(PREFACE + frame(SETTINGS, 0, 0))
    return sock


def call_headers(stream: int, path: str, token: str | None = None) -> bytes:
    """Return the headers of a gRPC call; its body does not follow."""
    pairs = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "here"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ]
    if token is not None:
        pairs.append(("authorization", f"Bearer {token}"))
    # Literal fields with literal names, never indexed: the simplest form of HPACK.
    block = b"".join(b"\0" + _text(name) + _text(value) for name, value in pairs)
    return frame(HEADERS, _END_HEADERS, stream, block)


def _text(text: str) -> bytes:
    assert len(text) < 127
    return bytes([len(text)]) + text.encode()


CONFIRMED = frame(SETTINGS, _ACK, 0)


@contextlib.contextmanager
def frames(sock: socket.socket) -> Iterator[Iterator[tuple[int, int, bytes]]]:
    """Read frames: kind, stream and payload of each, until the connection ends."""
    with sock.makefile("rb") as stream:
        yield _frames(stream)


def _frames(stream: IO[bytes]) -> Iterator[tuple[int, int, bytes]]:
    while len(head := stream.read(9)) == 9:
        size = int.from_bytes(head[:3], "big")
        kind, _, number = struct.unpack(">BBI", head[3:])
        yield kind, number, stream.read(size)


def is_closed(sock: socket.socket) -> bool:
    """Return whether the other end has closed a connection; read what it has sent."""
    sock.setblocking(False)
    try:
        while sock.recv(65536):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True

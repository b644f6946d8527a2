"""A socket with TLS that behaves as a plain one that does not block.

The ssl module has no scattered reads and no peeking, and it decrypts whole records: bytes may wait
here although the descriptor is not readable, so `has_pending` must be asked before a poll.
"""

import contextlib
import socket
import ssl
from collections.abc import Iterator, Sequence
from typing import Any, final

# The largest record: small pieces of a frame are encrypted together.
_RECORD_BYTES = 1 << 14


@final
class TlsSocket:
    """A TLS connection to a peer.

    Args:
        sock: The connection after its handshake; closed with this object.
    """

    def __init__(self, sock: ssl.SSLSocket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._peeked = b""

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._sock.fileno()

    def has_pending(self) -> bool:
        """Return whether bytes are here that no poll of the descriptor reports."""
        return bool(self._peeked) or self._sock.pending() > 0

    def sendmsg(self, parts: Sequence[memoryview]) -> int:
        """Send what is accepted of some buffers; return the number of bytes.

        Raises:
            BlockingIOError: Nothing is accepted now; the next call must begin with the same bytes.
            OSError: The connection is gone.
        """
        data: Any = parts[0]
        if data.nbytes < _RECORD_BYTES and len(parts) > 1:
            data = _joined(parts)
        with _as_plain():
            return self._sock.send(data)

    def recv_into(self, view: memoryview) -> int:
        """Read some bytes into memory; return their number, 0 at the end.

        Raises:
            BlockingIOError: There are none now.
            OSError: The connection is gone.
        """
        if self._peeked:
            count = min(len(self._peeked), view.nbytes)
            view.cast("B")[:count] = self._peeked[:count]
            self._peeked = self._peeked[count:]
            return count
        with _as_plain():
            return self._sock.recv_into(view)

    def recvmsg_into(self, views: Sequence[memoryview]) -> tuple[int]:
        """Read some bytes into the first of some buffers; see `recv_into`."""
        return (self.recv_into(views[0]),)

    def recv(self, limit: int, flags: int = 0) -> bytes:
        """Read some bytes; with MSG_PEEK they are read again later. See `recv_into`."""
        if flags & socket.MSG_PEEK:
            if not self._peeked:
                with _as_plain():
                    self._peeked = self._sock.recv(limit)
            return self._peeked[:limit]
        if self._peeked:
            found, self._peeked = self._peeked[:limit], self._peeked[limit:]
            return found
        with _as_plain():
            return self._sock.recv(limit)

    def shutdown(self, how: int) -> None:
        """Shut one direction of the connection below TLS."""
        # Not that of SSLSocket: it drops the TLS state, and what follows would be plaintext.
        socket.socket.shutdown(self._sock, how)

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()


def _joined(parts: Sequence[memoryview]) -> bytes:
    """Return the first bytes of some buffers, as many as fit into one record."""
    taken: list[memoryview] = []
    room = _RECORD_BYTES
    for part in parts:
        taken.append(part.cast("B")[:room])
        room -= taken[-1].nbytes
        if not room:
            break
    return b"".join(taken)


@contextlib.contextmanager
def _as_plain() -> Iterator[None]:
    """Raise what a plain socket raises if the call would block."""
    try:
        yield
    except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
        raise BlockingIOError from None

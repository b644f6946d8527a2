"""A bound on connections whose other end is unknown: when it is reached, the oldest is closed.

Refusing new ones instead would let a stranger lock everyone out with connections that send nothing.
A client that does its part has finished before it is the oldest.
"""

import contextlib
import socket
import threading
from typing import final


@final
class NewestSockets:
    """The newest of the open sockets, up to a bound.

    Args:
        most: How many.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()  # guards _open
        self._open: dict[socket.socket, None] = {}

    def add(self, sock: socket.socket) -> None:
        """Count a socket in; if there are too many, shut the oldest down under its thread."""
        with self._lock:
            oldest = next(iter(self._open)) if len(self._open) >= self._most else None
            if oldest is not None:
                del self._open[oldest]
            self._open[sock] = None
        if oldest is not None:
            with contextlib.suppress(OSError):  # it has ended by itself
                oldest.shutdown(socket.SHUT_RDWR)

    def remove(self, sock: socket.socket) -> None:
        """Count a socket out, if it is still counted."""
        with self._lock:
            self._open.pop(sock, None)

    def replace(self, sock: socket.socket, by: socket.socket) -> None:
        """Count another object for the same connection, if it is still counted."""
        with self._lock:
            if sock in self._open:
                # Behind newer ones: it has begun to do its part.
                del self._open[sock]
                self._open[by] = None

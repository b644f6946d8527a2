"""Byte streams with deadlines: what the links of a lane send through, over sockets and TLS."""

import contextlib
import socket
import ssl
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from gradmesh.sdk.transport.lane.spin import SpinWait

# Longest wait in the kernel before the deadline is checked.
_SLICE_S = 1.0
# Linux takes 1024 buffers a call; more than this gains nothing.
_MAX_BUFFERS = 512


class LaneBroken(ConnectionError):
    """The connection is gone, or its bytes break the protocol."""


class ByteStream(ABC):
    """One connection that carries bytes both ways."""

    @abstractmethod
    def receive(self, view: Any, deadline: float) -> int:
        """Read some bytes, at least one, into `view`.

        Args:
            view: Memory to fill.
            deadline: Point on the monotonic clock; infinity never passes.

        Raises:
            TimeoutError: Nothing arrived in time.
            LaneBroken: The connection is gone.
        """

    def receive_bytes(self, limit: int, deadline: float) -> bytes:
        """Read some bytes, at least one and at most `limit`, as `receive` does."""
        buffer = bytearray(limit)
        return bytes(buffer[: self.receive(buffer, deadline)])

    @abstractmethod
    def send(self, parts: Sequence[Any], deadline: float) -> None:
        """Write all bytes of all parts.

        Raises:
            TimeoutError: The peer did not read them in time.
            LaneBroken: The connection is gone.
        """

    @abstractmethod
    def stop_receiving(self) -> None:
        """End this and every later read; writing stays possible."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection, also under a thread that reads from it; may be called twice."""


class SocketStream(ByteStream):
    """A connection over a socket.

    Args:
        sock: The connected socket; closed with the stream.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def stop_receiving(self) -> None:
        """End this and every later read; writing stays possible."""
        self._shut(socket.SHUT_RD)

    def close(self) -> None:
        """Close the connection, also under a thread that reads from it; may be called twice."""
        self._shut(socket.SHUT_RDWR)
        self.sock.close()

    def __del__(self) -> None:
        # A process may end with its mesh open; that needs no ResourceWarning.
        self.sock.close()

    def _shut(self, how: int) -> None:
        with contextlib.suppress(OSError):  # the peer closed first
            # Not SSLSocket.shutdown: it drops the TLS state, so a thread that sends would continue
            # in plaintext.
            socket.socket.shutdown(self.sock, how)


@final
class PlainStream(SocketStream):
    """A socket with kernel timeouts, which cost no extra system call per message.

    Args:
        sock: The connected socket.
        spin_wait: Spins before a read blocks; None blocks at once.
    """

    def __init__(self, sock: socket.socket, spin_wait: "SpinWait | None" = None) -> None:
        super().__init__(sock)
        self.spin_wait = spin_wait
        self._spinning = self._closed = False
        sock.settimeout(None)
        self._limits = {socket.SO_RCVTIMEO: 0.0, socket.SO_SNDTIMEO: 0.0}
        self._limit(socket.SO_RCVTIMEO, _SLICE_S)
        self._limit(socket.SO_SNDTIMEO, _SLICE_S)

    def _limit(self, option: int, seconds: float) -> None:
        if self._limits[option] != seconds:
            self._limits[option] = seconds
            micros = max(1, int(seconds * 1e6))
            value = struct.pack("@ll", micros // 1_000_000, micros % 1_000_000)
            self.sock.setsockopt(socket.SOL_SOCKET, option, value)

    def _wait(self, option: int, deadline: float) -> None:
        """Limit the kernel's next wait to the deadline."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the deadline passed")
        self._limit(option, min(left, _SLICE_S))

    def close(self) -> None:
        """Close the connection, also under a thread that reads from it; may be called twice."""
        self._shut(socket.SHUT_RDWR)
        self._closed = True
        # A spinning thread still passes the descriptor to the kernel: it ends at once, and closes
        # the socket itself, so that the number is not reused under it.
        if not self._spinning:
            self.sock.close()

    def receive(self, view: Any, deadline: float) -> int:
        """Read some bytes into `view`."""
        return int(self._read(self.sock.recv_into, view, deadline))

    def receive_bytes(self, limit: int, deadline: float) -> bytes:
        """Read some bytes, at least one and at most `limit`."""
        spin_wait = self.spin_wait
        if spin_wait is None:
            return bytes(self._read(self.sock.recv, limit, deadline))
        begun = time.monotonic_ns()
        data = self._spin(spin_wait)
        if data is None:
            data = bytes(self._read(self.sock.recv, limit, deadline))
        spin_wait.record(time.monotonic_ns() - begun)
        return data

    def _spin(self, spin_wait: "SpinWait") -> bytes | None:
        """Spin for bytes before blocking; return None if there are none."""
        # Set before the descriptor is read; see `close`.
        self._spinning = True
        try:
            found = spin_wait.poll(self.sock.fileno())
        finally:
            self._spinning = False
            if self._closed:
                self.sock.close()
        if found == b"":
            raise LaneBroken("the peer closed the connection")
        return found

    def _read(self, receive: Callable[..., Any], what: Any, deadline: float) -> Any:
        """Call a receiving method of the socket until it returns bytes."""
        try:
            if deadline - time.monotonic() < _SLICE_S:
                self._wait(socket.SO_RCVTIMEO, deadline)
            while True:
                try:
                    got = receive(what)
                except BlockingIOError:
                    self._wait(socket.SO_RCVTIMEO, deadline)
                else:
                    if got:
                        return got
                    raise LaneBroken("the peer closed the connection")
        except TimeoutError:
            raise
        except OSError as error:
            raise LaneBroken(str(error)) from None

    def send(self, parts: Sequence[Any], deadline: float) -> None:
        """Write all bytes of all parts."""
        if deadline - time.monotonic() < _SLICE_S:
            self._wait(socket.SO_SNDTIMEO, deadline)
        try:
            if len(parts) == 1:
                sent = self.sock.send(parts[0])
                if sent == len(parts[0]):
                    return
            else:
                sent = self.sock.sendmsg(parts[:_MAX_BUFFERS])
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise LaneBroken(str(error)) from None
        self._send_rest(parts, sent, deadline)

    def _send_rest(self, parts: Sequence[Any], sent: int, deadline: float) -> None:
        rest = [memoryview(part).cast("B") for part in parts]
        while True:
            while rest and sent >= len(rest[0]):
                sent -= len(rest.pop(0))
            if not rest:
                return
            rest[0] = rest[0][sent:]
            self._wait(socket.SO_SNDTIMEO, deadline)
            try:
                sent = self.sock.sendmsg(rest[:_MAX_BUFFERS])
            except BlockingIOError:
                sent = 0
            except OSError as error:
                raise LaneBroken(str(error)) from None


@final
class TlsStream(SocketStream):
    """A socket with TLS; its timeouts are Python's, which the ssl module honours."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        super().__init__(sock)

    def _until(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the deadline passed")
        self.sock.settimeout(None if left == float("inf") else left)

    def receive(self, view: Any, deadline: float) -> int:
        """Read some bytes into `view`."""
        self._until(deadline)
        try:
            count = self.sock.recv_into(view)
        except TimeoutError:
            raise
        except OSError as error:
            raise LaneBroken(str(error)) from None
        if not count:
            raise LaneBroken("the peer closed the connection")
        return count

    def send(self, parts: Sequence[Any], deadline: float) -> None:
        """Write all bytes of all parts."""
        self._until(deadline)
        try:
            for part in parts:
                self.sock.sendall(part)
        except TimeoutError:
            raise
        except OSError as error:
            raise LaneBroken(str(error)) from None

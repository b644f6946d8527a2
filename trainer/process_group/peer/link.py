"""The connection to one peer: sends and receives frames without blocking.

The owner of the links polls them. A payload is received directly into the caller's memory, never
more than the caller expects.
"""

import contextlib
import fcntl
import socket
import ssl
import sys
import termios
from collections import deque
from typing import Any, final

from gradmesh.trainer.errors import CollectiveMismatch, PeerLost
from gradmesh.trainer.process_group.collective import Segments
from gradmesh.trainer.process_group.message import (
    HEADER_BYTES,
    MessageHeader,
    MessageKind,
    pack_header,
    peer_lost,
    shutdown_error,
    unpack_header,
)
from gradmesh.trainer.process_group.peer.early_frame import (
    MAX_EARLY_BYTES,
    EarlyFrame,
    drop_bytes,
    too_early,
)
from gradmesh.trainer.process_group.peer.tls_socket import TlsSocket

_MAX_DROPS = 16
_DROP_BYTES = 1 << 18
# So few bytes are sent already, and arrive before a reset; their acknowledgement may take 40 ms.
_PACKET_BYTES = 1024


@final
class PeerLink:
    """Hold the connection to the rank `rank` at `address`, and the frames in flight."""

    def __init__(self, sock: socket.socket, rank: int, address: str) -> None:
        sock.setblocking(False)
        self._is_remote = sock.family != socket.AF_UNIX
        if self._is_remote:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.rank = rank
        self.address = address
        self.bytes_moved = 0
        self._tls = TlsSocket(sock) if isinstance(sock, ssl.SSLSocket) else None
        self.sock: Any = self._tls or sock
        self._sent_frames = 0
        self._outgoing: list[memoryview] = []
        self._received_frames = 0
        self._header = bytearray(HEADER_BYTES)
        self._header_left = 0
        self._incoming: list[memoryview] = []
        self._expected: MessageHeader | None = None
        # Frames that arrived while this rank could only send: complete ones, and the partial one.
        self._early: deque[EarlyFrame] = deque()
        self._partial_early: EarlyFrame | None = None
        self._early_bytes = 0

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return int(self.sock.fileno())

    def start_send(self, text: str, segments: Segments) -> None:
        """Start a frame; `send_some` sends it."""
        header = MessageHeader(
            MessageKind.DATA, self._sent_frames, sum(p.nbytes for p in segments), text
        )
        self._sent_frames += 1
        self._outgoing = [memoryview(pack_header(header)), *segments]

    def start_receive(self, text: str, segments: Segments) -> None:
        """Expect a frame for `segments`; `receive_some` receives it."""
        expected = MessageHeader(
            MessageKind.DATA, self._received_frames, sum(p.nbytes for p in segments), text
        )
        self._received_frames += 1
        if self._early:
            early = self._early.popleft()
            self._early_bytes -= early.cost
            self._check(early.header, expected)
            early.copy_to(segments)
            return
        self._expected = expected
        if self._partial_early is not None:
            early, self._partial_early = self._partial_early, None
            self._early_bytes -= early.cost
            self._check(early.header, expected)
            self._incoming = early.copy_to(segments)
        elif self._incoming:
            self._incoming.extend(segments)
        else:
            self._header_left = HEADER_BYTES
            self._incoming = [memoryview(self._header), *segments]

    def has_pending(self) -> bool:
        """Return whether bytes have arrived that a poll of the descriptor does not report."""
        return self._tls is not None and self._tls.has_pending()

    def is_sending(self) -> bool:
        """Return whether a part of the frame is not sent yet."""
        return bool(self._outgoing)

    def is_receiving(self) -> bool:
        """Return whether a part of the expected frame is not received yet."""
        return self._expected is not None

    def send_some(self) -> None:
        """Send what the kernel accepts without blocking."""
        try:
            while self._outgoing:
                sent = self.sock.sendmsg(self._outgoing)
                self.bytes_moved += sent
                self._outgoing = drop_bytes(self._outgoing, sent)
        except BlockingIOError:
            return
        except OSError as error:
            self._raise_shutdown_reason()
            raise self._lost(str(error)) from error

    def receive_some(self) -> None:
        """Receive what the kernel has, up to the end of the expected frame."""
        if self._expected is not None:
            self._receive()

    def receive_early(self) -> None:
        """Receive what the peer sends before this rank expects it.

        Without this, two ranks that send big frames to each other would deadlock.
        """
        if self._expected is None:
            if not self._incoming:
                self._header_left = HEADER_BYTES
                self._incoming = [memoryview(self._header)]
            self._receive()

    def _receive(self) -> None:
        while self._incoming:
            try:
                if len(self._incoming) == 1:
                    received = self.sock.recv_into(self._incoming[0])
                else:
                    received = self.sock.recvmsg_into(self._incoming)[0]
            except BlockingIOError:
                return
            except OSError as error:
                raise self._lost(str(error)) from error
            if received == 0:
                raise self._lost("it closed the connection")
            self._advance(received)

    def has_unexpected_data(self) -> bool:
        """Return whether data has arrived that this rank does not expect; do not consume it.

        Raises:
            Exception: The data is a shutdown message, and the peer did not just close its group.
        """
        if self._incoming or self._early:
            return True
        try:
            seen = self.sock.recv(HEADER_BYTES, socket.MSG_PEEK)
            header = unpack_header(seen)
        except BlockingIOError:
            return False
        except (OSError, ValueError):
            return True
        if header.kind not in (MessageKind.DATA, MessageKind.CLOSED):
            raise self._shutdown_error(header)
        return True

    def start_shutdown(self, kind: MessageKind, rank: int) -> None:
        """Append a shutdown message to what is partly sent; `flush` sends it."""
        self._outgoing.append(memoryview(pack_header(MessageHeader(kind, rank, 0, ""))))

    def flush(self) -> bool:
        """Send what the kernel accepts and drop what arrives; True while bytes are in flight.

        Closing a socket with unread data resets the connection, and the peer loses what it has
        not received yet. So read until it has acknowledged all but what fits in one packet.
        """
        try:
            while self._outgoing:
                self._outgoing = drop_bytes(self._outgoing, self.sock.sendmsg(self._outgoing))
        except BlockingIOError:
            pass
        except OSError:
            return False
        return self._drop_incoming() and (
            bool(self._outgoing) or self._unacknowledged() > _PACKET_BYTES
        )

    def _drop_incoming(self) -> bool:
        """Discard what the kernel has; return whether the peer is still connected."""
        try:
            for _ in range(_MAX_DROPS):
                if not self.sock.recv(_DROP_BYTES):
                    return False
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True

    def _unacknowledged(self) -> int:
        if not self._is_remote:
            return 0  # what was sent is in the peer's queue already
        count = fcntl.ioctl(self.sock.fileno(), termios.TIOCOUTQ, bytes(4))
        return int.from_bytes(count, sys.byteorder)

    def close(self) -> None:
        """Close the socket; what was sent still arrives, then the peer reads the end."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)
        self.sock.close()

    def _raise_shutdown_reason(self) -> None:
        """Raise the reason of the peer's shutdown message, if it has sent one."""
        self.receive_some()
        if self._incoming:
            return
        try:
            header = unpack_header(self.sock.recv(HEADER_BYTES))
        except (OSError, ValueError):
            return
        if header.kind is not MessageKind.DATA:
            raise self._shutdown_error(header)

    def _advance(self, received: int) -> None:
        self.bytes_moved += received
        self._incoming = drop_bytes(self._incoming, received)
        if self._header_left:
            self._header_left = max(0, self._header_left - received)
            if not self._header_left:
                self._read_header()
        elif self._partial_early is not None:
            self._partial_early.arrived += received
            if not self._incoming:
                self._incoming = self._partial_early.grow()
        if not self._incoming:
            if self._partial_early is not None:
                self._early.append(self._partial_early)
            self._partial_early = self._expected = None

    def _read_header(self) -> None:
        try:
            header = unpack_header(self._header)
        except ValueError as error:
            raise self._lost(f"it sent bytes that are not a frame ({error})") from error
        if self._expected is not None or header.kind is not MessageKind.DATA:
            self._check(header, self._expected)
            return
        early = EarlyFrame(header)
        self._early_bytes += early.cost
        if self._early_bytes > MAX_EARLY_BYTES:
            raise too_early(f"rank {self.rank} ({self.address})", self._early_bytes)
        self._partial_early = early
        self._incoming = early.grow()

    def _check(self, header: MessageHeader, expected: MessageHeader | None) -> None:
        if header.kind is not MessageKind.DATA:
            raise self._shutdown_error(header)
        if expected is not None and header != expected:
            raise CollectiveMismatch(
                f"rank {self.rank} ({self.address}) called {header.text} with"
                f" {header.payload_bytes} bytes as frame {header.number}, this rank expects"
                f" {expected.text} with {expected.payload_bytes} bytes as frame"
                f" {expected.number}; all ranks must call the same collectives in the same order"
            )

    def _shutdown_error(self, header: MessageHeader) -> Exception:
        """Return the error for a peer's shutdown message."""
        return shutdown_error(header.kind, header.number, self.rank, self.address)

    def _lost(self, why: str) -> PeerLost:
        return peer_lost(self.rank, self.address, why)

"""The client's side of lanes: a pool of connections to one server, opened on demand.

No call fails because of a lane: after any failure here the call goes through gRPC, and the lane is
tried again after a pause.
"""

import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import final

from gradmesh.protos.errors import LaneUnavailable, MeshError
from gradmesh.protos.lane import VERSION
from gradmesh.protos.owner.v1 import owner_pb2 as pb
from gradmesh.sdk.process.network import LaneChoice, SecurityConfig, split
from gradmesh.sdk.transport.lane.arena import IdleTrimmer
from gradmesh.sdk.transport.lane.direct_call import DirectCall
from gradmesh.sdk.transport.lane.grpc_stream import ClientStream
from gradmesh.sdk.transport.lane.handshake import (
    HELLO_S,
    KIND_NAMES,
    WIRE_KINDS,
    greet,
    host_identity,
)
from gradmesh.sdk.transport.lane.link import InlineLink, Link
from gradmesh.sdk.transport.security import client_tls
from gradmesh.sdk.transport.watchdog import Watchdog

_log = logging.getLogger(__name__)

# The lanes to try for each value of transport.lane, best first. `unary` is a plain gRPC call.
_KINDS: dict[LaneChoice, tuple[str, ...]] = {
    "auto": ("shm", "tcp", "stream"),
    "shm": ("shm",),
    "tcp": ("tcp",),
    "stream": ("stream",),
    "unary": (),
}

# Connections of one pool, and so calls at once; more go through gRPC.
_MAX_LINKS = 8
_FIRST_PAUSE_S = 1.0
_MAX_PAUSE_S = 60.0


@final
class LanePool:
    """The pool of lane connections of one channel.

    Args:
        address: The server's gRPC address.
        worker: Its name, for the log.
        choice: Which lanes to try.
        negotiate: Calls OpenLane, within the given seconds.
        exchange: Starts the rpc Exchange, within the given seconds.
        security: Certificates.
        max_frame_bytes: Largest frame either way.
    """

    def __init__(
        self,
        address: str,
        worker: str,
        choice: LaneChoice,
        negotiate: Callable[[pb.OpenLaneRequest, float], pb.OpenLaneResponse],
        exchange: Callable[[float], DirectCall],
        security: SecurityConfig,
        max_frame_bytes: int,
    ) -> None:
        self._address = address
        self._worker = worker
        self._wanted = _KINDS[choice]
        self._negotiate = negotiate
        self._exchange = exchange
        self._watchdog = Watchdog(ClientStream.expire, "lane-watch")
        self._trimmer = IdleTrimmer(self._trim)
        self._security = security
        self._max_frame_bytes = max_frame_bytes
        self._lock = threading.Lock()  # guards all below; _free is also popped without it
        self._free: list[Link] = []
        self._links: set[Link] = set()
        self._opening = 0
        self._failed: set[str] = set()
        self._pause_s = _FIRST_PAUSE_S
        self._retry_at = 0.0 if self._wanted else float("inf")
        self._closed = False

    def take(self, timeout_s: float) -> Link | None:
        """Return a connection for one call, or None to call through gRPC."""
        try:
            return self._free.pop()
        except IndexError:
            pass
        if time.monotonic() < self._retry_at or timeout_s <= 0:
            return None
        with self._lock:
            if self._closed or len(self._links) + self._opening >= _MAX_LINKS:
                return None
            self._opening += 1
        link = None
        try:
            link = self._connect(min(timeout_s, HELLO_S))
        finally:
            with self._lock:
                self._opening -= 1
                if link is not None:
                    self._links.add(link)
        return link

    def give(self, link: Link) -> None:
        """Return a connection to the pool after its call."""
        if link.big:
            self._trimmer.record()
        if not self._closed:
            self._free.append(link)
        if self._closed:
            link.close()

    def _trim(self) -> None:
        """Release memory of large frames; connections with a call under way keep theirs."""
        idle = []
        while self._free:
            try:
                idle.append(self._free.pop())
            except IndexError:
                break  # taken by a call
        for link in idle:
            link.trim()
            self.give(link)

    def drop(self, link: Link) -> None:
        """Close a connection in the middle of a call."""
        link.close()
        with self._lock:
            self._links.discard(link)

    def broke(self, link: Link, why: str) -> None:
        """Close a connection that failed, and the idle ones, which lead to the same server."""
        self.drop(link)
        while self._free:
            self.drop(self._free.pop())
        self._pause(f"the {link.kind} lane broke: {why}")

    def close(self) -> None:
        """Close all connections, also those with a call under way; may be called twice."""
        with self._lock:
            self._closed = True
            self._retry_at = float("inf")
            self._free.clear()
            links, self._links = self._links, set()
        for link in links:
            link.close()
        self._watchdog.close()
        self._trimmer.close()

    def _connect(self, timeout_s: float) -> Link | None:
        """Open a connection of the best kind that works."""
        until = time.monotonic() + timeout_s
        why = "every lane has failed"
        for _ in self._wanted:
            kinds = [kind for kind in self._wanted if kind not in self._failed]
            left_s = until - time.monotonic()
            if not kinds or left_s <= 0:
                break
            try:
                link = self._connect_one(kinds, left_s)
            except MeshError as error:
                why = error.message
                if not isinstance(error, LaneUnavailable):
                    break
                self._failed.update(WIRE_KINDS)
            except (OSError, ValueError) as error:
                why = str(error)
            else:
                self._note_open(link)
                return link
        self._pause(why)
        return None

    def _connect_one(self, kinds: list[str], timeout_s: float) -> Link:
        if kinds == ["stream"]:
            return self._open_stream(timeout_s)
        offered = [WIRE_KINDS[kind] for kind in kinds if kind in WIRE_KINDS]
        request = pb.OpenLaneRequest(kinds=offered, host=host_identity(), version=VERSION)
        offer = self._negotiate(request, timeout_s)
        kind = KIND_NAMES.get(offer.kind)
        if kind not in kinds:
            raise ValueError(f"{self._worker} offers a lane that was not requested")
        try:
            sock = self._dial(kind, offer.address, timeout_s)
            try:
                link = greet(sock, kind, offer.secret, self._max_frame_bytes)
            except BaseException:
                sock.close()
                raise
        except (OSError, ValueError):
            self._failed.add(kind)
            raise
        return link

    def _open_stream(self, timeout_s: float) -> Link:
        stream = ClientStream(self._exchange(timeout_s), self._watchdog)
        try:
            stream.open(time.monotonic() + timeout_s)
        except BaseException:
            stream.close()
            self._failed.add("stream")
            raise
        return InlineLink(stream, self._max_frame_bytes, "stream")

    def _note_open(self, link: Link) -> None:
        with self._lock:
            first, self._pause_s = self._pause_s, _FIRST_PAUSE_S
            is_first = not self._links
        if is_first or first > _FIRST_PAUSE_S:
            _log.info("lane open", extra={"worker": self._worker, "lane": link.kind})

    def _dial(self, kind: str, address: str, timeout_s: float) -> socket.socket:
        if kind == "shm":
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                sock.settimeout(timeout_s)
                sock.connect("\0" + address)
            except BaseException:
                sock.close()
                raise
            return sock
        host = split(self._address)[0]
        sock = socket.create_connection((host, int(address)), timeout_s)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            tls = client_tls(self._security)
            return tls.wrap_socket(sock, server_hostname=host) if tls is not None else sock
        except BaseException:
            sock.close()
            raise

    def _pause(self, why: str) -> None:
        with self._lock:
            if self._closed:
                return
            first = self._pause_s == _FIRST_PAUSE_S
            self._failed.clear()
            self._retry_at = time.monotonic() + self._pause_s
            self._pause_s = min(_MAX_PAUSE_S, 2 * self._pause_s)
        # Log once per outage, not once per call.
        _log.log(
            logging.INFO if first else logging.DEBUG,
            "no lane, calls go through gRPC",
            extra={"worker": self._worker, "reason": why},
        )

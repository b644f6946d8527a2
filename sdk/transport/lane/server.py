"""The server's side of lanes: offer them, listen for them, run their connections."""

import contextlib
import logging
import os
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from typing import final

import grpc

from gradmesh.protos.errors import LaneUnavailable
from gradmesh.protos.lane import VERSION
from gradmesh.protos.method import methods_of
from gradmesh.protos.owner.v1 import owner_pb2 as pb
from gradmesh.sdk.process.network import SecurityConfig, TransportConfig, split
from gradmesh.sdk.process.newest_sockets import NewestSockets
from gradmesh.sdk.transport.account import account_of
from gradmesh.sdk.transport.call import Call, Caller, RpcHandler, current_caller
from gradmesh.sdk.transport.lane.arena import IdleTrimmer
from gradmesh.sdk.transport.lane.grpc_stream import EXCHANGE, VERSION_METADATA, ServerStream
from gradmesh.sdk.transport.lane.handshake import (
    HELLO_S,
    KIND_NAMES,
    LaneSecrets,
    host_identity,
    welcome,
)
from gradmesh.sdk.transport.lane.link import InlineLink, Link
from gradmesh.sdk.transport.lane.session import Session
from gradmesh.sdk.transport.metrics import RpcMetrics
from gradmesh.sdk.transport.security import server_tls

_log = logging.getLogger(__name__)

# Connections whose other end has not shown its secret yet; each holds a thread for some seconds.
_MAX_HANDSHAKES = 128
# Connections that wait to be accepted; the kernel delays clients beyond it by seconds.
_BACKLOG = 512
# Lanes that one member may always have, and its share of them all.
_LANES_OF_ONE, _SHARE_OF_ONE = 16, 4

OPEN_LANE = methods_of(pb.DESCRIPTOR.services_by_name["OwnerService"])["OpenLane"]
"""The rpc that negotiates a lane; every server serves it without a servicer."""

LANE_RPCS = frozenset({OPEN_LANE.path, EXCHANGE.path})
"""The rpcs that the server itself serves."""


@final
class LaneServer:
    """The lanes of one server; nothing listens before the first client asks.

    Args:
        config: Which lanes, and how many connections.
        security: Certificates.
        listen: Where gRPC listens; TCP lanes listen on the same host.
        handlers: The handlers of hot rpcs, by their numbers on lanes.
        metrics: Where calls are counted.
        max_frame_bytes: Largest frame either way.
    """

    def __init__(
        self,
        config: TransportConfig,
        security: SecurityConfig,
        listen: str,
        handlers: Mapping[int, RpcHandler],
        metrics: RpcMetrics,
        max_frame_bytes: int,
    ) -> None:
        self._config = config
        self._security = security
        self._host = split(listen)[0]
        self._handlers = handlers
        self._metrics = metrics
        self._max_frame_bytes = max_frame_bytes
        self._secrets = LaneSecrets()
        self._handshakes = NewestSockets(_MAX_HANDSHAKES)
        self._lock = threading.Lock()  # guards all below
        self._listeners: dict[str, socket.socket] = {}
        self._addresses: dict[str, str] = {}
        self._connections: dict[threading.Thread, socket.socket | Session] = {}
        self._streams: dict[Session, threading.Event] = {}
        # For streams only: sessions over sockets trim themselves when no request arrives for long.
        self._trimmer = IdleTrimmer(self._trim)
        self._draining = False

    def open_lane(self, request: pb.OpenLaneRequest, call: Call) -> pb.OpenLaneResponse:
        """Offer a connection (the rpc OpenLane).

        Raises:
            LaneUnavailable: There is no lane for this client.
        """
        kind = self._choose(request)
        with self._lock:
            self._check_capacity(call.caller)
            address = self._listen(KIND_NAMES[kind])
        secret = self._secrets.make(call.caller)
        if secret is None:
            raise LaneUnavailable("too many lanes are being opened at once")
        return pb.OpenLaneResponse(kind=kind, address=address, secret=secret)

    def _check_capacity(self, caller: Caller) -> None:
        most = self._config.max_lanes
        sessions = [*self._streams, *(c for c in self._connections.values() if type(c) is Session)]
        if self._draining or len(sessions) >= most:
            raise LaneUnavailable(
                f"all {most} lane connections are taken, or the process is draining; raise "
                "transport.max_lanes",
                max_lanes=most,
            )
        most = max(_LANES_OF_ONE, most // _SHARE_OF_ONE)
        account = account_of(caller)
        if account and sum(account_of(session.caller) == account for session in sessions) >= most:
            raise LaneUnavailable(
                f"{account!r} has {most} lane connections already; close some, or raise "
                "transport.max_lanes",
                max_lanes=most,
            )

    def exchange(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """Serve calls over a gRPC stream (the rpc Exchange).

        Raises:
            LaneUnavailable: There are too many lanes, or the client has another version of them.
        """
        if VERSION_METADATA not in [tuple(pair) for pair in context.invocation_metadata()]:
            raise LaneUnavailable(f"lanes of version {VERSION} only", version=VERSION)
        stream = ServerStream(requests, context)
        link = InlineLink(stream, self._max_frame_bytes, "stream")
        caller = current_caller()
        session = self._session(link, context.peer(), caller)
        ended = threading.Event()
        with self._lock:
            self._check_capacity(caller)
            self._streams[session] = ended
        context.send_initial_metadata((VERSION_METADATA,))
        return self._responses(session, stream, ended)

    def _responses(
        self, session: Session, stream: ServerStream, ended: threading.Event
    ) -> Iterator[bytes]:
        try:
            more = True
            while more:
                stream.response = ()
                more = session.step()
                yield from stream.response
                if session.link.big:
                    self._trimmer.record()
        finally:
            with self._lock:
                del self._streams[session]
            ended.set()

    def _trim(self) -> None:
        with self._lock:
            sessions = list(self._streams)
        for session in sessions:
            stream = session.link.stream
            assert isinstance(stream, ServerStream)
            stream.while_idle(session.link.trim)

    def _session(self, link: Link, peer: str, caller: Caller) -> Session:
        return Session(link, self._handlers, self._metrics, peer, caller, lambda: self._draining)

    def _choose(self, request: pb.OpenLaneRequest) -> pb.LaneKind:
        here = self._config.lane
        if request.version != VERSION:
            raise LaneUnavailable(f"lanes of version {VERSION} only", version=VERSION)
        for kind in request.kinds:
            name = KIND_NAMES.get(kind)
            same_host = bool(request.host) and request.host == host_identity()
            if name is not None and here in ("auto", name) and (name != "shm" or same_host):
                return kind
        raise LaneUnavailable(
            f"no lane in common: transport.lane is {here!r} here, and shared memory needs one host",
            lane=here,
        )

    def _listen(self, kind: str) -> str:
        """Return the address for connections of a kind; begin to listen at the first request."""
        if kind in self._addresses:
            return self._addresses[kind]
        try:
            sock, address = self._bind(kind)
        except OSError as error:
            raise LaneUnavailable(f"cannot listen for {kind} lanes: {error}") from None
        self._listeners[kind] = sock
        self._addresses[kind] = address
        threading.Thread(
            target=self._accept, args=(kind, sock), name=f"lane-{kind}", daemon=True
        ).start()
        return address

    def _bind(self, kind: str) -> tuple[socket.socket, str]:
        if kind == "shm":
            # An abstract name leaves no file behind.
            address = f"gradmesh-{os.getpid()}-{secrets.token_hex(8)}"
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                sock.bind("\0" + address)
                sock.listen(_BACKLOG)
            except OSError:
                sock.close()
                raise
            return sock, address
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        sock = socket.create_server(
            (self._host, self._config.lane_port), family=family, backlog=_BACKLOG
        )
        return sock, str(sock.getsockname()[1])

    def _accept(self, kind: str, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                if self._draining:
                    return
                time.sleep(0.1)  # out of descriptors: retry when connections have closed
                continue
            thread = threading.Thread(target=self._run, args=(kind, sock), daemon=True)
            with self._lock:
                if self._draining:
                    sock.close()
                    continue
                thread.name = f"lane-{kind}-{sock.fileno()}"
                self._connections[thread] = sock
            self._handshakes.add(sock)
            thread.start()

    def _run(self, kind: str, sock: socket.socket) -> None:
        me = threading.current_thread()
        try:
            session = self._open(kind, sock)
            if session is not None:
                with self._lock:
                    self._connections[me] = session
                session.run()
        finally:
            sock.close()
            with self._lock:
                del self._connections[me]

    def _open(self, kind: str, sock: socket.socket) -> Session | None:
        """Do the handshake; return the session of the connection, or None if it fails."""
        peer = "unix" if kind == "shm" else str(sock.getpeername()[0])
        try:
            sock.settimeout(HELLO_S)
            if kind != "shm":
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                if (tls := server_tls(self._security)) is not None:
                    sock = self._encrypt(sock, tls)
            link, caller = welcome(sock, kind, self._secrets.take, self._max_frame_bytes)
        except (OSError, ValueError) as error:
            _log.warning("lane refused", extra={"peer": peer, "error": str(error)})
            sock.close()
            return None
        finally:
            self._handshakes.remove(sock)
        return self._session(link, f"{kind}:{peer}", caller)

    def _encrypt(self, sock: socket.socket, tls: ssl.SSLContext) -> socket.socket:
        """Do the TLS handshake; `sock` has no connection afterwards."""
        wrapped = tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        self._handshakes.replace(sock, wrapped)
        with self._lock:
            self._connections[threading.current_thread()] = wrapped
        try:
            wrapped.do_handshake()
        except BaseException:
            self._handshakes.remove(wrapped)
            wrapped.close()
            raise
        return wrapped

    def refuse(self) -> None:
        """Accept no more calls; those under way continue."""
        with self._lock:
            self._draining = True
            listeners = list(self._listeners.values())
            connections = [*self._connections.values(), *self._streams]
        for listener in listeners:
            _shut(listener)
        for open_ in connections:
            if isinstance(open_, Session):
                open_.link.stream.stop_receiving()
            else:
                _shut(open_)

    def drain(self, grace_s: float) -> None:
        """Accept no more calls, let those under way finish within `grace_s`, then close."""
        self._trimmer.close()
        self.refuse()
        with self._lock:
            threads, streams = list(self._connections), list(self._streams.values())
        until = time.monotonic() + grace_s
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        for ended in streams:
            ended.wait(max(0.0, until - time.monotonic()))
        self._close_remaining()

    def _close_remaining(self) -> None:
        """Close what is still open; its threads end at their next send or receive."""
        with self._lock:
            left = [*self._connections.values(), *self._streams]
        for open_ in left:
            if isinstance(open_, Session):
                open_.link.close()
            else:
                _shut(open_)


def _shut(sock: socket.socket) -> None:
    """Close a socket under a thread that is blocked on it."""
    with contextlib.suppress(OSError):  # not connected
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()

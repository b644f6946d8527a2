"""Bounds on connections, threads and lanes, with limits small enough to reach."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from prometheus_client import CollectorRegistry

from gradmesh.protos import errors
from gradmesh.protos.frame import Frame
from gradmesh.protos.lane import VERSION
from gradmesh.protos.method import methods_of
from gradmesh.protos.owner.v1 import owner_pb2
from gradmesh.sdk.process.network import SecurityConfig, TransportConfig, split
from gradmesh.sdk.transport import server as server_module
from gradmesh.sdk.transport.channel import Channel
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.sdk.transport.liveness import LivenessProbe
from gradmesh.sdk.transport.metrics import RpcMetrics
from gradmesh.sdk.transport.server import Server
from tests.security.guarded import wait_until
from tests.security.http2 import is_closed

OWNER = owner_pb2.DESCRIPTOR.services_by_name["OwnerService"]
METHODS = methods_of(OWNER)


class Waiting:
    """An owner whose calls wait until they are released."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.free = threading.Event()

    def describe(self, request: Any, call: Any) -> owner_pb2.DescribeResponse:
        return owner_pb2.DescribeResponse(name=call.caller.role)

    def call(self, request: Any, call: Any) -> Frame[Any]:
        self.entered.release()
        self.free.wait(120)
        return Frame(owner_pb2.CallResponse(), [])

    def delete_ref(self, request: Any, call: Any) -> owner_pb2.DeleteRefResponse:
        return owner_pb2.DeleteRefResponse()

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        def serve(request: Any, call: Any) -> Any:
            raise errors.TableNotFound(verb)

        return serve


@pytest.fixture
def owner() -> Iterator[Waiting]:
    owner = Waiting()
    yield owner
    owner.free.set()


@pytest.fixture
def security(tmp_path: Path) -> Callable[..., SecurityConfig]:
    """Return the settings of the server, or of a client with the token of a role."""
    tokens = tmp_path / "tokens"
    tokens.write_text("trainer:of-trainer\nclient:of-client\n")

    def of(role: str | None = None, **tls: Any) -> SecurityConfig:
        if role is None:
            return SecurityConfig(tokens_file=tokens, **tls)
        file = tmp_path / role
        file.write_text(f"of-{role}")
        return SecurityConfig(token_file=file, **tls)

    return of


@pytest.fixture
def serve(owner: Waiting) -> Iterator[Callable[..., Server]]:
    with contextlib.ExitStack() as stack:

        def start(**options: Any) -> Server:
            server = Server({OWNER: owner}, listen="127.0.0.1:0", **options)
            server.start()
            stack.callback(server.drain, 0.1)
            stack.callback(owner.free.set)
            return server

        yield start


@pytest.fixture
def dial() -> Iterator[Callable[..., Channel]]:
    with contextlib.ExitStack() as stack:
        yield lambda address, **options: stack.enter_context(Channel(address, "ps-0", **options))


def describe(channel: Channel, timeout_s: float = 30) -> Any:
    request = owner_pb2.DescribeRequest()
    return channel.call(METHODS["Describe"], request, Deadline.after(timeout_s)).name


def test_members_are_served_while_strangers_hold_every_connection(
    monkeypatch: pytest.MonkeyPatch, serve: Any, dial: Any
) -> None:
    monkeypatch.setattr(server_module, "_HANDSHAKE_MS", 1500)
    server = serve(transport=TransportConfig(max_connections=16))
    member = dial(server.address)
    describe(member)

    with contextlib.ExitStack() as stack:
        held = [
            stack.enter_context(socket.create_connection(split(server.address), timeout=120))
            for _ in range(200)
        ]
        wait_until(lambda: sum(map(is_closed, held)) >= 180, "most connections are refused")
        # The member has its connection, and a new one gets in when the others are cut off.
        describe(member)
        describe(dial(server.address))


def test_a_tls_handshake_that_stalls_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, serve: Any, dial: Any
) -> None:
    monkeypatch.setattr(server_module, "_HANDSHAKE_MS", 1500)
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    files = {name: tmp_path / name for name in ("key", "certificate", "authority")}
    issued.private_key_pem.write_to_path(files["key"])
    issued.cert_chain_pems[0].write_to_path(files["certificate"])
    authority.cert_pem.write_to_path(files["authority"])
    server = serve(
        security=SecurityConfig(
            tls_key_file=files["key"], tls_certificate_file=files["certificate"]
        )
    )
    hello, nothing = ssl.MemoryBIO(), ssl.MemoryBIO()
    handshake = ssl.create_default_context().wrap_bio(nothing, hello, server_hostname="here")
    with contextlib.suppress(ssl.SSLWantReadError):
        handshake.do_handshake()

    with contextlib.ExitStack() as stack:
        held = [
            stack.enter_context(socket.create_connection(split(server.address), timeout=120))
            for _ in range(50)
        ]
        for sock in held:
            sock.sendall(hello.read() if hello.pending else b"\x16\x03\x01")
        client = SecurityConfig(tls_authority_file=files["authority"])
        assert describe(dial(server.address, security=client))
        wait_until(lambda: all(map(is_closed, held)), "stalled handshakes are cut off")


def test_one_caller_leaves_threads_to_the_others(
    serve: Any, dial: Any, owner: Waiting, security: Any
) -> None:
    server = serve(security=security(), threads=4)
    greedy = dial(server.address, security=security("client"), lane="unary")
    request = Frame(owner_pb2.CallRequest(), [])
    calls = [greedy.start(METHODS["Call"], request, Deadline.after(60)) for _ in range(20)]
    for _ in range(3):
        assert owner.entered.acquire(timeout=120)

    other = dial(server.address, security=security("trainer"), lane="unary")
    other.call(METHODS["DeleteRef"], owner_pb2.DeleteRefRequest(), Deadline.after(30))
    # Heartbeats have threads of their own, for the greedy caller too.
    assert describe(greedy) == "client"

    assert not owner.entered.acquire(blocking=False)
    owner.free.set()
    for call in calls:
        call.result()


def test_half_open_lane_connections_keep_no_member_out(serve: Any, dial: Any) -> None:
    server = serve(transport=TransportConfig(lane="tcp", max_lanes=4))
    offer = owner_pb2.OpenLaneRequest(version=VERSION, kinds=[owner_pb2.LANE_KIND_TCP])
    given = dial(server.address).call(METHODS["OpenLane"], offer, Deadline.after(30))
    registry = CollectorRegistry()
    late = dial(server.address, lane="tcp", metrics=RpcMetrics("client", registry))

    with contextlib.ExitStack() as stack:
        for _ in range(300):
            address = ("127.0.0.1", int(given.address))
            stack.enter_context(socket.create_connection(address, timeout=120))
        late.call(METHODS["DeleteRef"], owner_pb2.DeleteRefRequest(), Deadline.after(30))

    labels = {"rpc": METHODS["DeleteRef"].path, "status": "OK", "lane": "tcp"}
    assert registry.get_sample_value("gradmesh_rpc_client_calls_total", labels) == 1


def test_a_server_that_does_not_answer_is_not_alive(serve: Any) -> None:
    server = serve()
    assert server.answers()

    with ThreadPoolExecutor(1) as pool:
        probe = LivenessProbe(grpc.server(pool), probe_s=0.2, fresh_s=0.0)  # never started
        assert not probe.answers()
        probe.close()

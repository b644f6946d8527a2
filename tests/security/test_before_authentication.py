"""What a stranger, or a member that turned hostile, can spend before its call is accepted."""

import contextlib
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gradmesh.protos import limits
from gradmesh.sdk.process.network import split
from tests.security.guarded import METHODS, TOKENS, GuardedCoordinator, Member, wait_until
from tests.security.http2 import (
    CONFIRMED,
    HEADERS,
    PREFACE,
    RST_STREAM,
    call_headers,
    connect,
    frames,
    is_closed,
)

_REFUSED_STREAM = (7).to_bytes(4, "big")


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedCoordinator]:
    coordinator = GuardedCoordinator(tmp_path_factory.mktemp("coordinator"), files=512)
    yield coordinator
    coordinator.close()


@pytest.fixture(scope="module")
def member(coordinator: GuardedCoordinator) -> Iterator[Member]:
    member = Member(coordinator, "trainer-0")
    yield member
    member.close()


@pytest.fixture
def stranger(coordinator: GuardedCoordinator) -> Iterator[grpc.Channel]:
    """A channel without a token."""
    options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(coordinator.address, options) as channel:
        yield channel


@pytest.fixture
def send_headers(stranger: grpc.Channel) -> Iterator[Callable[..., Any]]:
    """Begin calls whose requests never follow."""
    never = threading.Event()

    def send(path: str, token: str | None = None) -> Any:
        def request() -> Iterator[bytes]:
            never.wait(120)
            yield from ()

        metadata = [("authorization", f"Bearer {token}")] if token else None
        return stranger.stream_unary(path).future(request(), timeout=120, metadata=metadata)

    yield send
    never.set()


@pytest.fixture
def half_open(coordinator: GuardedCoordinator) -> Iterator[Callable[..., list[socket.socket]]]:
    """Open connections that send nothing."""
    with contextlib.ExitStack() as stack:

        def begin(address: str, count: int) -> list[socket.socket]:
            target = split(address)
            return [
                stack.enter_context(socket.create_connection(target, timeout=120))
                for _ in range(count)
            ]

        yield begin


def check(channel: grpc.Channel) -> Any:
    request = health_pb2.HealthCheckRequest()
    return health_pb2_grpc.HealthStub(channel).Check(request, timeout=120).status


def test_watches_that_are_cancelled_do_not_stop_the_server(
    coordinator: GuardedCoordinator, member: Member, stranger: grpc.Channel
) -> None:
    stub = health_pb2_grpc.HealthStub(stranger)

    # The ends of some overlap with the beginnings of others.
    watches: deque[Any] = deque()
    for _ in range(1000):
        watches.append(stub.Watch(health_pb2.HealthCheckRequest(), timeout=120))
        if len(watches) == 12:
            watches.popleft().cancel()
    for watch in watches:
        watch.cancel()

    assert check(stranger) == health_pb2.HealthCheckResponse.SERVING
    assert coordinator.status().members
    assert coordinator.healthz() == 200
    member.wait_for_renewals()


def test_watchers_beyond_the_limit_are_refused_and_hold_no_thread(
    coordinator: GuardedCoordinator, stranger: grpc.Channel
) -> None:
    before = coordinator.threads()
    stub = health_pb2_grpc.HealthStub(stranger)
    watches = [stub.Watch(health_pb2.HealthCheckRequest(), timeout=120) for _ in range(200)]

    def refused() -> int:
        return sum(watch.done() for watch in watches)

    wait_until(lambda: refused() >= 180, "most watches are refused")

    assert {w.code() for w in watches if w.done()} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert coordinator.threads() <= before + 24
    assert check(stranger) == health_pb2.HealthCheckResponse.SERVING
    for watch in watches:
        watch.cancel()


@pytest.mark.parametrize("token", [None, "wrong", "é" * 3])
def test_a_stranger_is_refused_before_it_sends_a_request(
    coordinator: GuardedCoordinator, send_headers: Callable[..., Any], token: str | None
) -> None:
    before = coordinator.threads()
    shown = token.encode().hex() if token else None

    calls = [send_headers(METHODS[name].path, shown) for name in ("Register", "GetStatus") * 40]
    codes = {call.exception(timeout=120).code() for call in calls}

    assert codes == {grpc.StatusCode.UNAUTHENTICATED}
    assert coordinator.threads() <= before + 16


@pytest.mark.parametrize("name", ["GetStatus", "RenewLease", "Register"])
def test_calls_without_a_request_keep_no_member_from_its_lease(
    coordinator: GuardedCoordinator, member: Member, send_headers: Callable[..., Any], name: str
) -> None:
    calls = [send_headers(METHODS[name].path, TOKENS["client"]) for _ in range(100)]

    member.wait_for_renewals()

    with coordinator.dial("trainer") as channel:
        assert coordinator.status(channel).members
    assert coordinator.healthz() == 200
    for call in calls:
        call.cancel()


def test_large_messages_that_are_refused_leave_no_memory_behind(
    coordinator: GuardedCoordinator, stranger: grpc.Channel
) -> None:
    coordinator.status()
    before = coordinator.resident_mib()
    message = bytes(200 << 20)

    for token in (None, None, "wrong", None, TOKENS["client"], TOKENS["client"]):
        metadata = [("authorization", f"Bearer {token}")] if token else None
        with pytest.raises(grpc.RpcError) as refused:
            stranger.unary_unary(METHODS["GetStatus"].path)(message, timeout=120, metadata=metadata)
        expected = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert refused.value.code() in expected

    assert coordinator.resident_mib() <= before * 1.1


def test_half_open_connections_do_not_exhaust_the_descriptors(
    coordinator: GuardedCoordinator, member: Member, half_open: Callable[..., Any]
) -> None:
    # More than the soft limit of open files with which the process was started.
    half_open(coordinator.address, 1100)

    assert coordinator.status().members  # on a new connection
    assert coordinator.healthz() == 200
    member.wait_for_renewals()


def test_half_open_connections_to_the_metrics_do_not_hide_the_health(
    coordinator: GuardedCoordinator, half_open: Callable[..., Any]
) -> None:
    before = coordinator.threads()
    held = half_open(coordinator.metrics_address, 300)
    for sock in held:
        with contextlib.suppress(OSError):
            sock.sendall(b"GET /healthz HTT")

    assert coordinator.healthz() == 200
    assert coordinator.threads() <= before + 80


def test_streams_of_one_connection_have_a_bound(
    coordinator: GuardedCoordinator, member: Member
) -> None:
    path = METHODS["GetStatus"].path
    with connect(coordinator.address) as sock, frames(sock) as received:
        sock.sendall(CONFIRMED)
        # More than may wait for one caller: a refusal has headers only, or resets the stream.
        for number in range(1, 2 * limits.MAX_STREAMS, 2):
            sock.sendall(call_headers(number, path, TOKENS["client"]))
        refused = 0
        while refused < 100:
            kind, _, payload = next(received)
            refused += kind == HEADERS or (kind == RST_STREAM and payload == _REFUSED_STREAM)

        assert coordinator.threads() <= 150
        member.wait_for_renewals()
    assert coordinator.status().members


def test_a_preface_that_trickles_is_cut_off(
    coordinator: GuardedCoordinator,
) -> None:
    with socket.create_connection(split(coordinator.address), timeout=120) as sock:
        left = list(PREFACE)

        def is_cut() -> bool:
            with contextlib.suppress(OSError):
                if len(left) > 1 and threading.Event().wait(0.5) is False:
                    sock.sendall(bytes([left.pop(0)]))
            return is_closed(sock)

        wait_until(is_cut, "the connection is closed")
        assert left, "it was closed because the preface was wrong"


def test_probes_of_the_process_itself_have_a_socket_that_serves_nothing_else(
    coordinator: GuardedCoordinator,
) -> None:
    assert coordinator.healthz() == 200
    with grpc.insecure_channel(f"unix-abstract:{coordinator.probe_socket()}") as channel:
        assert check(channel) == health_pb2.HealthCheckResponse.SERVING
        metadata = [("authorization", f"Bearer {TOKENS['admin']}")]
        with pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary(METHODS["GetStatus"].path)(b"", timeout=120, metadata=metadata)

    assert refused.value.code() == grpc.StatusCode.PERMISSION_DENIED

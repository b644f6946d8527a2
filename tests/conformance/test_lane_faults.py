"""Lanes under bad luck and bad will: deaths, refusals, wrong secrets, bytes that make no sense."""

import contextlib
import gc
import os
import random
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from gradmesh.protos.errors import Unauthenticated, Unreachable
from gradmesh.protos.frame import Frame
from gradmesh.protos.lane import HEADER, MAGIC, VERSION, Header
from gradmesh.protos.owner.v1 import owner_pb2
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2 as pb
from gradmesh.sdk.mesh.servers import METHODS
from gradmesh.sdk.process.security import SecurityConfig
from gradmesh.sdk.process.transport import TransportConfig
from gradmesh.sdk.transport.channel import Channel
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.sdk.transport.lane.handshake import greet, host_identity
from gradmesh.sdk.transport.lane.link import Link

ROOT = Path(__file__).resolve().parents[2]
FAST = ("tcp", "tcp+tls", "shm")


@contextlib.contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    script = Path(__file__).with_name("lane_process.py")
    child = subprocess.Popen(
        [sys.executable, str(script), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield child
    finally:
        child.kill()
        child.wait(10)
        for pipe in (child.stdin, child.stdout):
            pipe.close()


def wait_until(condition: Callable[[], bool], timeout_s: float = 10) -> None:
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.01)


def lane_threads() -> list[str]:
    # Those of connections; the listeners stay.
    return [t.name for t in threading.enumerate() if t.name.startswith(("lane-shm-", "lane-tcp-"))]


def open_files() -> set[str]:
    """Return what this process has open that a lane could have left."""
    gc.collect()
    links = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            links.append(f"{fd} {os.readlink(f'/proc/self/fd/{fd}')}")
    return {link for link in links if "memfd" in link or "socket" in link}


def mapped() -> int:
    return sum("gradmesh-lane" in line for line in Path("/proc/self/maps").read_text().splitlines())


def offer(mesh: Any, kind: int) -> owner_pb2.OpenLaneResponse:
    request = owner_pb2.OpenLaneRequest(kinds=[kind], host=host_identity(), version=VERSION)
    reply = mesh.channel.call(METHODS["OpenLane"], request, Deadline.after(5))
    assert isinstance(reply, owner_pb2.OpenLaneResponse)
    return reply


def dial(kind: str, address: str) -> socket.socket:
    if kind == "tcp":
        return socket.create_connection(("127.0.0.1", int(address)), 5)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(5)
    sock.connect("\0" + address)
    return sock


def open_link(mesh: Any, kind: str) -> Link:
    number = {"shm": owner_pb2.LANE_KIND_SHM, "tcp": owner_pb2.LANE_KIND_TCP}[kind]
    given = offer(mesh, number)
    return greet(dial(kind, given.address), kind, given.secret, 1 << 20)


@pytest.mark.parametrize("lane", ["unary", "grpc", "tcp", "shm"], indirect=True)
def test_a_killed_server_is_unreachable_within_the_deadline(lane: str) -> None:
    with process("server", "127.0.0.1:0") as child:
        address = child.stdout.readline().strip()
        with Channel(address, "slow", lane=lane, patience_s=0.5) as channel:
            frame = Frame(pb.LookupRequest(tables=["t"]), [np.arange(3)])
            channel.call(METHODS["Lookup"], frame, Deadline.after(10))
            waiting = Frame(pb.LookupRequest(tables=["wait"]), [np.arange(3)])
            pending = channel.start(METHODS["Lookup"], waiting, Deadline.after(20))
            assert child.stdout.readline() == "entered\n"

            child.kill()
            begun = time.monotonic()
            with pytest.raises(Unreachable, match="slow at"):
                pending.result()

            assert time.monotonic() - begun < 10


@pytest.mark.parametrize("lane", ["grpc", "tcp", "shm"], indirect=True)
def test_a_server_that_came_back_gets_its_lane_back(lane: str) -> None:
    frame = Frame(pb.LookupRequest(tables=["t"]), [np.arange(3)])
    with process("server", "127.0.0.1:0") as child:
        address = child.stdout.readline().strip()
        channel = Channel(address, "slow", lane=lane)
        channel.call(METHODS["Lookup"], frame, Deadline.after(10))
    with channel, process("server", address) as child:
        assert child.stdout.readline().strip() == address

        reply = channel.call(METHODS["Lookup"], frame, Deadline.after(10))

        np.testing.assert_array_equal(reply.arrays[0], np.arange(3))

        def on_lane() -> bool:
            pending = channel.start(METHODS["Lookup"], frame, Deadline.after(10))
            pending.borrow()
            pending.release()
            return pending._lane == {"grpc": "stream"}.get(lane, lane)

        wait_until(on_lane)


@pytest.mark.parametrize("kind", ["tcp", "shm"])
def test_a_killed_client_leaves_nothing_behind(lane_mesh: Any, kind: str) -> None:
    mesh = lane_mesh("grpc")
    open_link(mesh, kind).close()
    wait_until(lambda: not lane_threads())
    before = open_files(), mapped()

    with process("client", mesh.server.address, kind) as child:
        assert mesh.echo.entered.acquire(timeout=20)
        assert lane_threads()
        child.kill()
        mesh.echo.leave.set()
        wait_until(lambda: not lane_threads())

    wait_until(lambda: mapped() == before[1])
    assert open_files() - before[0] == set()


@pytest.mark.parametrize("lane", FAST, indirect=True)
def test_closed_channels_leave_nothing_behind(lanes: Any) -> None:
    lanes.lookup(np.arange(3))
    with lanes.connect() as other:
        lanes.lookup(np.arange(3), channel=other)
    wait_until(lambda: len(lane_threads()) == 1)
    before = len(open_files()), mapped(), len(psutil.Process().open_files())

    for _ in range(5):
        with lanes.connect() as channel:
            lanes.lookup(np.arange(3), channel=channel)
            started = [
                channel.start(METHODS["Lookup"], Frame(pb.LookupRequest()), Deadline.after(9))
                for _ in range(4)
            ]
            started[0].result()
            started[1].cancel()
        del started

    wait_until(lambda: len(lane_threads()) == 1)
    wait_until(lambda: (len(open_files()), mapped()) == before[:2])
    assert len(psutil.Process().open_files()) == before[2]


def test_nothing_lies_in_shared_memory_folders(lane_mesh: Any) -> None:
    before = set(os.listdir("/dev/shm"))

    lane_mesh("shm").lookup(np.zeros(1_000_000))

    assert set(os.listdir("/dev/shm")) == before


def test_a_channel_closed_during_a_call_ends_it(lane_mesh: Any) -> None:
    for lane in ("shm", "tcp", "grpc"):
        mesh = lane_mesh(lane)
        frame = Frame(pb.LookupRequest(tables=["wait"]), [])
        pending = mesh.channel.start(METHODS["Lookup"], frame, Deadline.after(20))
        assert mesh.echo.entered.acquire(timeout=10)

        threading.Timer(0.1, mesh.channel.close).start()

        with pytest.raises(Unreachable):
            pending.result()
        mesh.echo.leave.set()


@pytest.mark.parametrize("here", ["grpc", "tcp"])
def test_a_refused_lane_leaves_the_call_to_grpc(lane_mesh: Any, here: Any) -> None:
    mesh = lane_mesh("shm")
    server = mesh.serve(TransportConfig(lane=here))
    channel = mesh.connect(server)

    for _ in range(3):
        np.testing.assert_array_equal(mesh.lookup(np.arange(3), channel=channel)[0], np.arange(3))

    assert mesh.echo.borrowed == [False] * 3


def test_auto_falls_from_shared_memory_to_tcp(lane_mesh: Any) -> None:
    mesh = lane_mesh("auto")
    server = mesh.serve(TransportConfig(lane="tcp"))
    channel = mesh.connect(server)

    mesh.lookup(np.arange(3), channel=channel)
    mesh.lookup(np.arange(3))

    assert mesh.echo.borrowed == [True, True]
    assert mesh.calls() == {"shm": 1}


def test_callers_beyond_the_limit_stay_on_grpc(lane_mesh: Any) -> None:
    mesh = lane_mesh("shm")
    server = mesh.serve(TransportConfig(max_lanes=2))

    for _ in range(4):
        mesh.lookup(np.arange(3), channel=mesh.connect(server))

    assert mesh.echo.borrowed == [True, True, False, False]


def test_a_lane_needs_the_token(lane_mesh: Any) -> None:
    mesh = lane_mesh("tcp+tls")
    nameless = SecurityConfig(
        tls_authority_file=mesh.security.tls_authority_file,
        tls_certificate_file=mesh.security.tls_certificate_file,
        tls_key_file=mesh.security.tls_key_file,
    )

    with pytest.raises(Unauthenticated):
        mesh.lookup(np.arange(3), channel=mesh.connect(security=nameless))

    assert not lane_threads()


def test_tcp_lane_with_tls_refuses_plain_bytes_and_strangers(lane_mesh: Any) -> None:
    mesh = lane_mesh("tcp+tls")
    given = offer(mesh, owner_pb2.LANE_KIND_TCP)

    with dial("tcp", given.address) as sock, pytest.raises(ConnectionError):
        greet(sock, "tcp", given.secret, 1 << 20)

    mesh.lookup(np.arange(3))
    assert mesh.calls() == {"tcp": 1}


@pytest.mark.parametrize("kind", ["tcp", "shm"])
def test_a_wrong_secret_opens_nothing(lane_mesh: Any, kind: str) -> None:
    mesh = lane_mesh("grpc")
    address = offer(mesh, {"shm": 1, "tcp": 2}[kind]).address

    with dial(kind, address) as sock, pytest.raises(ConnectionError):
        greet(sock, kind, bytes(32), 1 << 20)


@pytest.mark.parametrize("kind", ["tcp", "shm"])
def test_a_secret_opens_one_connection(lane_mesh: Any, kind: str) -> None:
    mesh = lane_mesh("grpc")
    given = offer(mesh, {"shm": 1, "tcp": 2}[kind])
    link = greet(dial(kind, given.address), kind, given.secret, 1 << 20)

    with dial(kind, given.address) as sock, pytest.raises(ConnectionError):
        greet(sock, kind, given.secret, 1 << 20)

    link.close()


def ask_raw(link: Link, data: bytes) -> bytes:
    """Send bytes over a connection; return what comes back before it is closed."""
    with contextlib.suppress(OSError):
        link.stream.sock.sendall(data)
        link.stream.sock.shutdown(socket.SHUT_WR)
    link.stream.sock.settimeout(5)
    answer = b""
    with contextlib.suppress(ConnectionError):
        while part := link.stream.sock.recv(65536):
            answer += part
    link.close()
    return answer


def header(**changed: int) -> bytes:
    return HEADER.pack(*Header(MAGIC, 1, 1, 1000, 0, 0, 0, 0)._replace(**changed))


BAD = {
    "magic": header(magic=1),
    "huge head": header(head_bytes=2**32 - 1),
    "huge table": header(table_bytes=2**32 - 1),
    "huge body": header(body_bytes=2**63),
    "cut table": header(table_bytes=3) + b"abc",
    "unknown type": header(table_bytes=16) + struct.pack("<BBHIQ", 99, 0, 0, 0, 0),
    "too many axes": header(table_bytes=16) + struct.pack("<BBHIQ", 9, 200, 0, 0, 0),
    "beyond the body": header(table_bytes=24, body_bytes=0)
    + struct.pack("<BBHIQQ", 9, 1, 0, 0, 0, 2**40),
    "odd offset": header(table_bytes=16, body_bytes=0) + struct.pack("<BBHIQ", 9, 0, 0, 0, 8),
    "overflow": header(table_bytes=32) + struct.pack("<BBHIQQQ", 9, 2, 0, 0, 0, 2**40, 2**40),
    "two frames at once": header() + header(),
}


@pytest.mark.parametrize("kind", ["tcp", "shm"])
@pytest.mark.parametrize("name", BAD)
def test_a_bad_frame_is_refused_and_costs_nothing(lane_mesh: Any, kind: str, name: str) -> None:
    mesh = lane_mesh(kind)
    resident = psutil.Process().memory_info().rss

    answer = ask_raw(open_link(mesh, kind), BAD[name])

    assert b"INVALID_FRAME" in answer
    assert psutil.Process().memory_info().rss - resident < 32 << 20
    np.testing.assert_array_equal(mesh.lookup(np.arange(3))[0], np.arange(3))


@pytest.mark.parametrize("kind", ["tcp", "shm"])
def test_unknown_rpcs_and_bad_messages_keep_the_connection(lane_mesh: Any, kind: str) -> None:
    mesh = lane_mesh("grpc")
    link = open_link(mesh, kind)
    deadline = time.monotonic() + 5

    for number, head, reason in ((77, b"", b"INVALID_REQUEST"), (1, b"\xff\xff", b"INVALID_FRAME")):
        link.send(number, 5, 1000, head, (), deadline)
        answer = link.receive(deadline)
        assert (answer.number, answer.call) == (1, 5)
        assert reason in answer.head
    link.send(3, 6, 1000, b"", (), deadline)

    assert link.receive(deadline).number == 0
    link.close()


@pytest.mark.parametrize("kind", ["tcp", "shm"])
def test_random_bytes_never_hurt(lane_mesh: Any, kind: str) -> None:
    mesh = lane_mesh(kind)
    mesh.lookup(np.arange(3))
    good = header(table_bytes=24, body_bytes=24) + struct.pack("<BBHIQQ", 5, 1, 0, 0, 0, 3)
    good += bytes(-len(good) % 64) + bytes(24) if kind == "tcp" else b""
    chance = random.Random(7)

    for _ in range(60):
        data = bytearray(good)
        for _ in range(chance.randint(1, 6)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        ask_raw(open_link(mesh, kind), bytes(data[: chance.randint(1, len(data))]))

    np.testing.assert_array_equal(mesh.lookup(np.arange(3))[0], np.arange(3))
    wait_until(lambda: len(lane_threads()) == 1)


def test_memory_that_could_shrink_is_refused(lane_mesh: Any) -> None:
    mesh = lane_mesh("grpc")
    given = offer(mesh, owner_pb2.LANE_KIND_SHM)
    fd = os.memfd_create("unsealed")
    os.ftruncate(fd, 4096)

    with dial("shm", given.address) as sock:
        hello = struct.pack("<4sH2x32s", b"GMLN", VERSION, given.secret)
        socket.send_fds(sock, [hello], [fd])
        os.close(fd)

        assert sock.recv(100) == b""


def test_a_client_that_says_nothing_is_cut_off(lane_mesh: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("gradmesh.sdk.transport.lane.host.HELLO_S", 0.2)
    monkeypatch.setattr("gradmesh.sdk.transport.lane.handshake.HELLO_S", 0.2)
    mesh = lane_mesh("grpc")
    address = offer(mesh, owner_pb2.LANE_KIND_TCP).address

    with dial("tcp", address) as sock:
        assert sock.recv(100) == b""

    wait_until(lambda: not lane_threads())

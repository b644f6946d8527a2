"""Hostile peers of lanes: wrong secrets, malformed bytes, silence."""

import contextlib
import os
import random
import socket
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from gradmesh.protos.lane import HEADER, MAGIC, VERSION, FrameHeader
from gradmesh.protos.owner.v1 import owner_pb2
from gradmesh.sdk.transport.lane.handshake import greet
from gradmesh.sdk.transport.lane.link import Link
from tests.conformance.conftest import LaneMesh
from tests.conformance.raw_lane import dial, offer, open_link
from tests.conftest import wait_until


@pytest.mark.parametrize("kind", ["tcp", "shm"])
def test_a_wrong_secret_is_refused(lane_mesh: Any, kind: str) -> None:
    mesh = lane_mesh("stream")
    address = offer(mesh, {"shm": 1, "tcp": 2}[kind]).address

    with dial(kind, address) as sock, pytest.raises(ConnectionError):
        greet(sock, kind, bytes(32), 1 << 20)


@pytest.mark.parametrize("kind", ["tcp", "shm"])
def test_a_secret_opens_one_connection(lane_mesh: Any, kind: str) -> None:
    mesh = lane_mesh("stream")
    given = offer(mesh, {"shm": 1, "tcp": 2}[kind])
    link = greet(dial(kind, given.address), kind, given.secret, 1 << 20)

    with dial(kind, given.address) as sock, pytest.raises(ConnectionError):
        greet(sock, kind, given.secret, 1 << 20)

    link.close()


def ask_raw(link: Link, data: bytes) -> bytes:
    """Send bytes over a connection; return the bytes received before it is closed."""
    with contextlib.suppress(OSError):
        link.stream.sock.sendall(data)
        link.stream.sock.shutdown(socket.SHUT_WR)
    link.stream.sock.settimeout(20)
    answer = b""
    with contextlib.suppress(ConnectionError):
        while part := link.stream.sock.recv(65536):
            answer += part
    link.close()
    return answer


def header(**changed: int) -> bytes:
    return HEADER.pack(*FrameHeader(MAGIC, 1, 1, 1000, 0, 0, 0, 0)._replace(**changed))


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
    "empty and huge": header(table_bytes=40)
    + struct.pack("<BBHIQQQQ", 9, 3, 0, 0, 0, 0, 2**40, 2**40),
    "two frames at once": header() + header(),
}


def send_a_bad_frame(folder: Path, kind: str, name: str) -> tuple[bytes, int, list[int]]:
    """Return the answer, the memory it took, and the rows of a good call afterwards."""
    with contextlib.ExitStack() as undo:
        mesh = LaneMesh(kind, folder, undo)
        mesh.lookup(np.arange(3))  # loads modules that every call needs
        resident = psutil.Process().memory_info().rss
        answer = ask_raw(open_link(mesh, kind), BAD[name])
        cost = psutil.Process().memory_info().rss - resident
        return answer, cost, mesh.lookup(np.arange(3))[0].tolist()


@pytest.mark.parametrize("kind", ["tcp", "shm"])
@pytest.mark.parametrize("name", BAD)
def test_a_bad_frame_is_refused_and_costs_nothing(
    in_own_process: Any, tmp_path: Path, kind: str, name: str
) -> None:
    answer, cost, good = in_own_process(send_a_bad_frame, tmp_path, kind, name)

    assert b"INVALID_FRAME" in answer
    assert cost < 32 << 20
    assert good == [0, 1, 2]


@pytest.mark.parametrize("kind", ["tcp", "shm"])
def test_unknown_rpcs_and_bad_messages_keep_the_connection(lane_mesh: Any, kind: str) -> None:
    mesh = lane_mesh("stream")
    link = open_link(mesh, kind)
    deadline = time.monotonic() + 20

    for number, head, reason in ((77, b"", b"INVALID_REQUEST"), (1, b"\xff\xff", b"INVALID_FRAME")):
        link.send(number, 5, 1000, head, (), deadline)
        answer = link.receive(deadline)
        assert (answer.number, answer.call) == (1, 5)
        assert reason in answer.head
    link.send(3, 6, 1000, b"", (), deadline)

    assert link.receive(deadline).number == 0
    link.close()


@pytest.mark.parametrize("kind", ["tcp", "shm"])
def test_random_bytes_do_not_break_the_server(lane_mesh: Any, kind: str) -> None:
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
    wait_until(lambda: len(mesh.connection_threads()) == 1)


def test_memory_that_could_shrink_is_refused(lane_mesh: Any) -> None:
    mesh = lane_mesh("stream")
    given = offer(mesh, owner_pb2.LANE_KIND_SHM)
    fd = os.memfd_create("unsealed")
    os.ftruncate(fd, 4096)

    with dial("shm", given.address) as sock:
        hello = struct.pack("<4sH2x32s", b"GMLN", VERSION, given.secret)
        socket.send_fds(sock, [hello], [fd])
        os.close(fd)

        assert sock.recv(100) == b""


def test_a_silent_client_is_disconnected(lane_mesh: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("gradmesh.sdk.transport.lane.server.HELLO_S", 0.2)
    monkeypatch.setattr("gradmesh.sdk.transport.lane.handshake.HELLO_S", 0.2)
    mesh = lane_mesh("stream")
    address = offer(mesh, owner_pb2.LANE_KIND_TCP).address

    with dial("tcp", address) as sock:
        assert sock.recv(100) == b""

    wait_until(lambda: not mesh.connection_threads())

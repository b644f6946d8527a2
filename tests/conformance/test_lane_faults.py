"""Faults of lanes: killed processes, refusals, closed channels."""

import contextlib
import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from gradmesh.protos.errors import Unauthenticated, Unreachable
from gradmesh.protos.frame import Frame
from gradmesh.protos.owner.v1 import owner_pb2
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2 as pb
from gradmesh.sdk.cluster.servers import METHODS
from gradmesh.sdk.process.network import SecurityConfig, TransportConfig
from gradmesh.sdk.transport.channel import Channel
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.sdk.transport.lane.handshake import greet
from tests.conformance.conftest import LaneMesh
from tests.conformance.raw_lane import dial, offer, open_link
from tests.conftest import wait_until

ROOT = Path(__file__).resolve().parents[2]
FAST = ("tcp", "tcp+tls", "shm")
SHARED = "/dev/shm"


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
        child.wait(120)
        for pipe in (child.stdin, child.stdout):
            pipe.close()


def open_files() -> set[str]:
    """Return the files, sockets and maps of this process that a lane could leak."""
    gc.collect()
    links = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            links.append(f"{fd} {os.readlink(f'/proc/self/fd/{fd}')}")
    return {link for link in links if "memfd" in link or "socket" in link}


def mapped() -> int:
    return sum("gradmesh-lane" in line for line in Path("/proc/self/maps").read_text().splitlines())


@pytest.mark.parametrize("lane", ["unary", "stream", "tcp", "shm"], indirect=True)
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


@pytest.mark.parametrize("lane", ["stream", "tcp", "shm"], indirect=True)
def test_a_restarted_server_gets_its_lane_again(lane: str) -> None:
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
            return pending._lane == lane

        wait_until(on_lane)


def serve_a_client_that_is_killed(folder: Path, kind: str) -> set[str]:
    """Return what is open after the calls and was not before."""
    with contextlib.ExitStack() as undo:
        mesh = LaneMesh("stream", folder, undo)
        open_link(mesh, kind).close()
        wait_until(lambda: not mesh.connection_threads())
        before, mapped_before = open_files(), mapped()
        with process("client", mesh.server.address, kind) as child:
            assert mesh.echo.entered.acquire(timeout=120)
            assert mesh.connection_threads()
            child.kill()
            mesh.echo.leave.set()
            wait_until(lambda: not mesh.connection_threads())
        wait_until(lambda: mapped() == mapped_before)
        return open_files() - before


@pytest.mark.parametrize("kind", ["tcp", "shm"])
def test_a_killed_client_leaks_nothing(in_own_process: Any, tmp_path: Path, kind: str) -> None:
    assert in_own_process(serve_a_client_that_is_killed, tmp_path, kind) == set()


def open_and_close_channels(folder: Path, lane: str) -> tuple[int, int]:
    """Return how many files are open before and afterwards; sockets and maps are as before."""
    with contextlib.ExitStack() as undo:
        lanes = LaneMesh(lane, folder, undo)
        lanes.lookup(np.arange(3))
        with lanes.connect() as other:
            lanes.lookup(np.arange(3), channel=other)
        wait_until(lambda: len(lanes.connection_threads()) == 1)
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

        wait_until(lambda: len(lanes.connection_threads()) == 1)
        wait_until(lambda: (len(open_files()), mapped()) == before[:2])
        return before[2], len(psutil.Process().open_files())


@pytest.mark.parametrize("lane", FAST)
def test_closed_channels_leave_nothing_behind(
    in_own_process: Any, tmp_path: Path, lane: str
) -> None:
    before, after = in_own_process(open_and_close_channels, tmp_path, lane)

    assert after == before


def use_shared_memory(folder: Path) -> tuple[int, list[str], list[str]]:
    """Return how often lanes are mapped, and their files in the shared memory folder.

    Other processes have files there, too: only files that this process maps or has open count.
    """
    before = [line for line in Path("/proc/self/maps").read_text().splitlines() if SHARED in line]
    opened: list[str] = []
    sys.addaudithook(lambda name, event: opened.append(str(event[0])) if name == "open" else None)
    with contextlib.ExitStack() as undo:
        LaneMesh("shm", folder, undo).lookup(np.zeros(1_000_000))
        maps = Path("/proc/self/maps").read_text().splitlines()
        more = {line for line in maps if SHARED in line} - set(before)
        return mapped(), sorted(more), [path for path in opened if path.startswith(SHARED)]


def test_no_file_is_left_in_shared_memory_folders(in_own_process: Any, tmp_path: Path) -> None:
    lanes, maps, opened = in_own_process(use_shared_memory, tmp_path)

    assert lanes > 0
    assert maps == []
    assert opened == []
    assert not [name for name in os.listdir(SHARED) if "gradmesh-lane" in name]


def test_a_channel_closed_during_a_call_ends_it(lane_mesh: Any) -> None:
    for lane in ("shm", "tcp", "stream"):
        mesh = lane_mesh(lane)
        frame = Frame(pb.LookupRequest(tables=["wait"]), [])
        pending = mesh.channel.start(METHODS["Lookup"], frame, Deadline.after(20))
        assert mesh.echo.entered.acquire(timeout=120)

        threading.Timer(0.1, mesh.channel.close).start()

        with pytest.raises(Unreachable):
            pending.result()
        mesh.echo.leave.set()


@pytest.mark.parametrize("here", ["stream", "tcp"])
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


def test_callers_beyond_the_limit_use_grpc(lane_mesh: Any) -> None:
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

    assert not mesh.connection_threads()


def test_tcp_lane_with_tls_refuses_plain_bytes_and_strangers(lane_mesh: Any) -> None:
    mesh = lane_mesh("tcp+tls")
    given = offer(mesh, owner_pb2.LANE_KIND_TCP)

    with dial("tcp", given.address) as sock, pytest.raises(ConnectionError):
        greet(sock, "tcp", given.secret, 1 << 20)

    mesh.lookup(np.arange(3))
    assert mesh.calls() == {"tcp": 1}

"""Peers that change shared memory while it is used, and that share files that are not memory."""

import contextlib
import fcntl
import mmap
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradmesh.protos.common.v1 import context_pb2
from gradmesh.protos.errors import IdOutOfRange, InvalidFrame, InvalidRequest, StaleShardMap
from gradmesh.protos.frame import Frame
from gradmesh.protos.lane import VERSION
from gradmesh.protos.owner.v1 import owner_pb2
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2 as pb
from gradmesh.protos.sharding import buckets_of
from gradmesh.sdk.cluster.servers import METHODS
from gradmesh.sdk.rpc.registry import Registry
from gradmesh.sdk.rpc.servicer import NoContexts, OwnerServicer
from gradmesh.sdk.transport.boundary import from_bytes
from gradmesh.sdk.transport.channel import Channel
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.sdk.transport.lane.arena import map_peer
from gradmesh.sdk.transport.lane.handshake import greet, host_identity
from gradmesh.sdk.transport.lane.link import Link
from gradmesh.sdk.transport.lane.sealed import SEALS, sealed_size
from gradmesh.sdk.transport.server import Call, Server

VICTIM = str(Path(__file__).with_name("lane_victim.py"))
ROWS, DIM, FRAME_BYTES = 1000, 8, 1 << 22
COUNT = 2048
POSITIONS = 1 << 15
CALLS = 400
# Beyond the table, beyond the address space, negative.
BAD_IDS = (ROWS, 2**40, 2**62, -(2**40), -1)


class Victim:
    """A server process, and a raw shm connection to it."""

    def __init__(self, undo: contextlib.ExitStack) -> None:
        self.process = subprocess.Popen(
            [sys.executable, VICTIM, "server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        undo.enter_context(self.process)
        undo.callback(self.process.kill)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        self.channel = Channel(self.address, "server", lane="unary")
        undo.callback(self.channel.close)
        self.link = self.open_link()
        undo.callback(self.link.close)

    def offer(self) -> owner_pb2.OpenLaneResponse:
        request = owner_pb2.OpenLaneRequest(
            kinds=[owner_pb2.LANE_KIND_SHM], host=host_identity(), version=VERSION
        )
        reply = self.channel.call(METHODS["OpenLane"], request, Deadline.after(30))
        assert isinstance(reply, owner_pb2.OpenLaneResponse)
        return reply

    def dial(self, given: owner_pb2.OpenLaneResponse) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(30)
        sock.connect("\0" + given.address)
        return sock

    def open_link(self) -> Link:
        given = self.offer()
        return greet(self.dial(given), "shm", given.secret, FRAME_BYTES)

    def ask(self, rpc: str, message: Any, *arrays: Any) -> str:
        """Call over the lane with arrays of its arena; return OK or the reason of the error."""
        link, until = self.link, time.monotonic() + 30
        link.calls += 1
        link.send(
            METHODS[rpc].number, link.calls, 20_000, message.SerializeToString(), arrays, until
        )
        reply = link.receive(until)
        return "OK" if reply.number == 0 else from_bytes(reply.head, rpc).reason

    def rows(self, ids: Any, table: str = "dense") -> Any:
        message = pb.LookupRequest(tables=[table], shard_epoch=1)
        frame = Frame(message, [np.array(ids, np.int64)])
        return self.channel.call(METHODS["Lookup"], frame, Deadline.after(30)).arrays[0]


@pytest.fixture(scope="module")
def victim() -> Iterator[Victim]:
    with contextlib.ExitStack() as undo:
        yield Victim(undo)


@contextlib.contextmanager
def flipping(*changes: tuple[Any, tuple[Any, ...]]) -> Iterator[None]:
    """Change arrays all the time, from one of their values to the next."""
    ended = threading.Event()

    def run() -> None:
        while not ended.is_set():
            for array, values in changes:
                for value in values:
                    array[...] = value

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def own_ids() -> Any:
    """Return the ids of the table that are on the server."""
    every = np.arange(ROWS)
    return every[buckets_of(every) < 2048]


def test_ids_that_change_after_the_check_are_not_used(victim: Victim) -> None:
    """Version 0 of the lane crashed with SIGSEGV after nine of these lookups."""
    good = int(own_ids()[3])
    foreign = int(np.setdiff1d(np.arange(ROWS), own_ids())[0])
    seen: Counter[str] = Counter()
    for table in ("dense", "hash"):
        victim.link.arena.begin()
        ids = victim.link.arena.empty((COUNT,), np.int64)
        ids[...] = good
        bad = BAD_IDS if table == "dense" else (foreign,)
        message = pb.LookupRequest(tables=[table], shard_epoch=1)
        with flipping((ids, (good, *bad))):
            seen += Counter(victim.ask("Lookup", message, ids) for _ in range(CALLS))

    assert set(seen) <= {"OK", IdOutOfRange.reason, StaleShardMap.reason}
    assert victim.process.poll() is None
    assert (victim.rows(own_ids()) == 1).all()


def test_a_push_changes_only_rows_whose_ids_and_gradients_were_checked(victim: Victim) -> None:
    ids_here = own_ids()
    target, others = int(ids_here[0]), ids_here[1:]
    victim.link.arena.begin()
    ids = victim.link.arena.empty((1,), np.int64)
    grads = victim.link.arena.empty((1, DIM), np.float32)
    ids[...], grads[...] = target, 0
    seen: Counter[str] = Counter()
    with flipping((ids, (target, *BAD_IDS)), (grads, (0.5, np.nan, np.inf, -0.5))):
        for number in range(CALLS):
            message = pb.PushRequest(
                tables=["dense"], worker="hostile", incarnation=1, sequence=number, shard_epoch=1
            )
            seen[victim.ask("Push", message, ids, grads)] += 1

    assert set(seen) <= {
        "OK", IdOutOfRange.reason, StaleShardMap.reason, InvalidRequest.reason
    }  # fmt: skip
    assert np.isfinite(victim.rows([target])).all()
    assert (victim.rows(others) == 1).all()


def test_large_pushes_with_changing_ids_do_not_crash(victim: Victim) -> None:
    ids_here = own_ids()
    victim.link.arena.begin()
    ids = victim.link.arena.empty((ids_here.size,), np.int64)
    grads = victim.link.arena.empty((ids_here.size, DIM), np.float32)
    ids[...], grads[...] = ids_here, 0
    with flipping((ids, (ids_here, *BAD_IDS)), (grads, (0.0, np.nan))):
        for number in range(CALLS):
            message = pb.PushRequest(
                tables=["hash"], worker="many", incarnation=1, sequence=number, shard_epoch=1
            )
            victim.ask("Push", message, ids, grads)

    assert victim.process.poll() is None
    assert (victim.rows(ids_here, "hash") == 1).all()


def test_gradients_of_a_backward_are_kept_as_they_were_checked(victim: Victim) -> None:
    ids_here = own_ids()
    link = victim.link
    seen: Counter[str] = Counter()
    for number in range(1, 100):
        context = context_pb2.ContextId(worker="hostile", incarnation=1, counter=number)
        link.arena.begin()
        ids = link.arena.empty((ids_here.size,), np.int64)
        ids[...] = ids_here
        lookup = pb.LookupRequest(tables=["hash"], shard_epoch=1, context=context, lookup=1)
        assert victim.ask("Lookup", lookup, ids) == "OK"
        link.arena.begin()
        grads = link.arena.empty((ids_here.size, DIM), np.float32)
        grads[...] = 0
        with flipping((grads, (0.0, np.nan, 0.0, np.inf))):
            backward = pb.BackwardRequest(context=context, lookup=1)
            seen[victim.ask("Backward", backward, grads)] += 1
            # The memory changes also after the call has ended.
            victim.channel.call(
                METHODS["Apply"], pb.ApplyRequest(context=context), Deadline.after(30)
            )

    assert set(seen) <= {"OK", InvalidRequest.reason}
    assert (victim.rows(ids_here, "hash") == 1).all()


def test_rows_of_a_restore_have_checked_ids(victim: Victim) -> None:
    ids_here = own_ids()
    link = victim.link
    link.arena.begin()
    ids = link.arena.empty((64,), np.int64)
    rows = link.arena.empty((64, DIM), np.float32)
    ids[...], rows[...] = ids_here[:64], 1
    message = pb.LoadRowsRequest(table="dense", names=["ids", "rows"], shard_epoch=1)
    with flipping((ids, (ids_here[:64], *BAD_IDS))):
        for _ in range(CALLS):
            victim.ask("LoadRows", message, ids, rows)

    assert victim.process.poll() is None
    assert (victim.rows(ids_here[64:]) == 1).all()


class HostileServer:
    """Answers refreshes with positions that it changes after they were sent."""

    def __init__(self) -> None:
        self._sent: list[Any] = []

    def refresh(self, request: Any, call: Call) -> Frame[Any]:
        positions = call.empty((POSITIONS,), np.int64)
        rows = call.empty((POSITIONS, DIM), np.float32)
        positions[...], rows[...] = 1, 2
        self._sent = [positions]
        return Frame(pb.RefreshResponse(count=1), [positions, rows])

    def flip(self) -> None:
        for positions in self._sent:
            for value in (1, *BAD_IDS):
                positions[...] = value

    def __getattr__(self, name: str) -> Any:
        """Serve every other rpc, though no test calls it."""
        return self.refresh


def test_positions_that_a_server_changes_do_not_crash_its_client() -> None:
    hostile = HostileServer()
    server = Server(
        {
            pb.DESCRIPTOR.services_by_name["ParameterServerService"]: hostile,
            owner_pb2.DESCRIPTOR.services_by_name["OwnerService"]: OwnerServicer(
                "server", "parameter-server", 1, Registry(), NoContexts()
            ),
        },
        listen="127.0.0.1:0",
        max_frame_bytes=FRAME_BYTES,
    )
    server.start()
    try:
        with subprocess.Popen(
            [sys.executable, VICTIM, "client", server.address], stdout=subprocess.PIPE, text=True
        ) as client:
            try:
                while client.poll() is None:
                    hostile.flip()
                    time.sleep(1e-4)  # the server's threads need the interpreter, too
                assert client.stdout is not None
                assert 0 <= int(client.stdout.read()) <= 300
                assert client.returncode == 0
            finally:
                client.kill()
    finally:
        server.drain(1.0)


def unsealed() -> int:
    fd = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 4096)
    return fd


def empty() -> int:
    fd = os.memfd_create("empty", os.MFD_ALLOW_SEALING)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    return fd


def pipe() -> int:
    read, write = os.pipe()
    os.close(write)
    return read


def device() -> int:
    return os.open("/dev/zero", os.O_RDWR)


def file_on_disk() -> int:
    return os.open(__file__, os.O_RDONLY)


def folder() -> int:
    return os.open("/", os.O_RDONLY)


def huge_pages() -> int:
    fd = os.memfd_create("huge", os.MFD_ALLOW_SEALING | os.MFD_HUGETLB)
    os.ftruncate(fd, 1 << 21)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    return fd


@pytest.mark.parametrize("share", [unsealed, empty, pipe, device, file_on_disk, folder, huge_pages])
def test_files_that_are_not_sealed_memory_are_refused(
    victim: Victim, share: Callable[[], int]
) -> None:
    fd = share()
    given = victim.offer()
    with victim.dial(given) as sock:
        hello = struct.pack("<4sH2x32s", b"GMLN", VERSION, given.secret)
        socket.send_fds(sock, [hello], [fd])
        os.close(fd)

        assert sock.recv(100) == b""
    assert (victim.rows(own_ids()[64:]) == 1).all()


def test_only_one_frame_of_a_huge_sparse_file_is_mapped() -> None:
    fd = os.memfd_create("sparse", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 1 << 45)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)

    with contextlib.closing(map_peer(fd, FRAME_BYTES)) as mapped:
        assert len(mapped) == FRAME_BYTES
    os.close(fd)


def test_memory_that_shrinks_while_it_is_checked_is_never_mapped_too_large() -> None:
    """The size was read before the seal: memory that shrank in between ended the process."""

    def shrink(fd: int) -> None:
        os.ftruncate(fd, mmap.PAGESIZE)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)

    with ThreadPoolExecutor(1) as pool:
        for _ in range(500):
            fd = os.memfd_create("shrinking", os.MFD_ALLOW_SEALING)
            os.ftruncate(fd, 1 << 20)
            shrunk = pool.submit(shrink, fd)
            size = None
            while size is None:
                with contextlib.suppress(ValueError):
                    size = sealed_size(fd)
            shrunk.result()
            assert size == os.fstat(fd).st_size
            os.close(fd)


def test_a_peer_that_removes_its_pages_reads_as_zeros(victim: Victim) -> None:
    link = victim.open_link()
    link.arena.begin()
    ids = link.arena.empty((COUNT,), np.int64)
    ids[...] = int(own_ids()[3])
    until = time.monotonic() + 30
    message = pb.LookupRequest(tables=["dense"], shard_epoch=1).SerializeToString()
    ended = threading.Event()

    def punch() -> None:
        while not ended.is_set():
            link.arena._map.madvise(mmap.MADV_REMOVE)

    thread = threading.Thread(target=punch)
    thread.start()
    try:
        for number in range(100):
            link.send(METHODS["Lookup"].number, number, 20_000, message, [ids], until)
            link.receive(until)
    finally:
        ended.set()
        thread.join()
        link.close()

    assert victim.process.poll() is None


def test_a_shape_that_numpy_cannot_have_is_refused(victim: Victim) -> None:
    link = victim.open_link()
    table = struct.pack("<BBHIQ3Q", 5, 3, 0, 0, 0, 0, 2**47, 2**47)
    header = struct.pack(
        "<HHIIIIIQ", 0x4D47, METHODS["Lookup"].number, 1, 1000, 0, len(table), 0, 0
    )
    link.stream.send((header + table,), time.monotonic() + 30)

    reply = link.receive(time.monotonic() + 30)

    assert from_bytes(reply.head, "Lookup").reason == InvalidFrame.reason
    link.close()

"""Attacks on process groups: strangers at their ports, replays, lying peers, listeners."""

import contextlib
import json
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import trustme

from gradmesh.sdk.process.network import SecurityConfig
from gradmesh.trainer.errors import CollectiveMismatch, HandshakeRefused, PeerLost
from gradmesh.trainer.process_group import (
    Endpoint,
    FileStore,
    ProcessGroup,
    ShmProcessGroup,
    TcpProcessGroup,
)
from gradmesh.trainer.process_group.message import MessageHeader, MessageKind, pack_header
from gradmesh.trainer.process_group.peer.handshake import RankIdentity
from gradmesh.trainer.process_group.peer.link import PeerLink
from gradmesh.trainer.process_group.peer.rendezvous import connect_mesh, share_secret

STRANGER = str(Path(__file__).with_name("stranger.py"))
# Without shared memory, so that everything crosses the sockets.
APART = Endpoint(host="")
PATTERN = np.full(5000, 1.2345678, np.float32)


def read(sock: socket.socket, count: int) -> bytes:
    """Return the next bytes, fewer if the connection ends."""
    data = b""
    while len(data) < count and (part := sock.recv(count - len(data))):
        data += part
    return data


class Relay:
    """A proxy before a rank that records every byte of its connections.

    Args:
        target: The address of the rank.
        tls: A certificate and a trust store, to end TLS in the middle of the connection.
    """

    def __init__(
        self, target: tuple[str, int], tls: tuple[ssl.SSLContext, ssl.SSLContext] | None = None
    ) -> None:
        self._target = target
        self._tls = tls
        self.sent = [bytearray(), bytearray()]
        self.listener = socket.create_server(("127.0.0.1", 0))
        self._open = [self.listener]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            near, _ = self.listener.accept()
            far = socket.create_connection(self._target, 20)
            self._open += [near, far]
            if self._tls is not None:
                near, far = self._break_in(near, far)
                self._open += [near, far]
            for source, target, seen in ((near, far, self.sent[0]), (far, near, self.sent[1])):
                threading.Thread(
                    target=self._pump, args=(source, target, seen), daemon=True
                ).start()

    def _break_in(self, near: socket.socket, far: socket.socket) -> list[socket.socket]:
        """Pass the handshake on, then speak TLS with both ends."""
        assert self._tls is not None
        for source, target, count in ((far, near, 32), (near, far, 90), (far, near, 33)):
            source.settimeout(20)
            target.sendall(read(source, count))
        return [
            self._tls[0].wrap_socket(near, server_side=True),
            self._tls[1].wrap_socket(far, server_hostname="127.0.0.1"),
        ]

    def _pump(self, source: socket.socket, target: socket.socket, seen: bytearray) -> None:
        with contextlib.suppress(OSError):
            source.settimeout(None)
            while data := source.recv(1 << 16):
                seen += data
                target.sendall(data)
        with contextlib.suppress(OSError):
            socket.socket.shutdown(target, socket.SHUT_WR)

    def close(self) -> None:
        for sock in self._open:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)
            sock.close()
        self._thread.join()


class RedirectingStore:
    """The store as a rank sees it whose connections to rank 0 go through a relay."""

    def __init__(self, world: "World", tls: Any = None) -> None:
        self._store = world.store
        self._undo = world.undo
        self._tls = tls
        self.relay: Relay | None = None

    def set(self, key: str, value: bytes) -> None:
        self._store.set(key, value)

    def get(self, key: str, timeout_s: float) -> bytes:
        value = self._store.get(key, timeout_s)
        if key != "process_group/address/0":
            return value
        self.relay = Relay(tuple(json.loads(value)), self._tls)
        self._undo.callback(self.relay.close)
        return json.dumps(self.relay.listener.getsockname()).encode()


class World:
    """The ranks of one group, each on a thread."""

    def __init__(self, folder: Path, undo: contextlib.ExitStack) -> None:
        self.store = FileStore(folder / "store")
        self._pool = undo.enter_context(ThreadPoolExecutor(8))
        self.undo = undo

    def join(
        self, rank: int, size: int, endpoint: Endpoint = APART, store: Any = None
    ) -> Future[TcpProcessGroup]:
        # Ranks publish their address once all have named their host: ahead of them.
        for peer in range(size):
            self.store.set(f"process_group/host/{peer}", b"@")

        def join() -> TcpProcessGroup:
            group = TcpProcessGroup.connect(
                store or self.store,
                generation=3,
                rank=rank,
                world_size=size,
                timeout_s=40,
                endpoint=endpoint,
            )
            self.undo.callback(group.close)
            return group

        return self._pool.submit(join)

    def address(self, rank: int) -> tuple[str, int]:
        return tuple(json.loads(self.store.get(f"process_group/address/{rank}", 30)))

    def run(self, groups: list[Any], job: Callable[[ProcessGroup], Any]) -> list[Any]:
        return [done.result(60) for done in [self._pool.submit(job, group) for group in groups]]

    def flood(self, rank: int, kind: str) -> None:
        """Flood the port of a rank, from a process of its own, until the test ends."""
        host, port = self.address(rank)
        process = self.undo.enter_context(
            subprocess.Popen(
                [sys.executable, STRANGER, host, str(port), kind],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        self.undo.callback(process.kill)
        assert process.stdout is not None
        assert process.stdout.readline() == "flooding\n"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with contextlib.ExitStack() as undo:
        yield World(tmp_path, undo)


def total(group: ProcessGroup) -> float:
    array = np.full(3, group.rank + 1.0)
    group.all_reduce(array).wait()
    return float(array[0])


@pytest.mark.parametrize("kind", ["hold", "babble"])
def test_strangers_cannot_keep_ranks_from_meeting(world: World, kind: str) -> None:
    first = world.join(0, 3)
    world.flood(0, kind)
    groups = [first, world.join(1, 3)]
    world.flood(1, kind)
    groups.append(world.join(2, 3))

    assert world.run([group.result(50) for group in groups], total) == [6.0] * 3


def test_a_flood_costs_a_rank_a_bounded_number_of_threads_and_descriptors(world: World) -> None:
    first = world.join(0, 2)
    process = psutil.Process()
    threads, files = process.num_threads(), process.num_fds()
    world.flood(0, "hold")

    assert process.num_threads() <= threads + 2
    assert process.num_fds() <= files + 600
    groups = [first, world.join(1, 2)]
    assert world.run([group.result(50) for group in groups], total) == [3.0, 3.0]


def test_a_recorded_handshake_cannot_be_replayed(world: World) -> None:
    first = world.join(0, 3)
    redirected = RedirectingStore(world)
    second = world.join(1, 3, store=redirected)
    world.store.get("process_group/address/1", 30)
    recorded = 0
    while recorded < 90:
        recorded = len(redirected.relay.sent[0]) if redirected.relay else 0
        threading.Event().wait(0.01)
    assert redirected.relay is not None

    with socket.create_connection(world.address(0), 20) as replay:
        replay.sendall(redirected.relay.sent[0][:90])
        answer = read(replay, 1000)
    assert answer[32:] == bytes([1]) + bytes(32)  # wrong secret, and nothing that is signed

    groups = [first, second, world.join(2, 3)]
    assert world.run([group.result(50) for group in groups], total) == [6.0] * 3


def lying_peer(world: World) -> tuple[TcpProcessGroup, PeerLink]:
    """Return a group, and the link of a member to it that can send anything."""
    group = world.join(0, 2)
    secret = share_secret(world.store, 1, 30)
    identity = RankIdentity(generation=3, world_size=2, rank=1, secret=secret)
    links = connect_mesh(world.store, identity, APART, 30)
    return group.result(50), links[0]


@pytest.mark.parametrize("length", [2**60, 2**63, 2**64 - 1])
def test_the_length_of_an_expected_frame_is_not_believed(world: World, length: int) -> None:
    group, link = lying_peer(world)
    array = np.zeros(3)
    text = "send(1 to 0) of 3 float64"
    link.sock.send(pack_header(MessageHeader(MessageKind.DATA, 0, length, text)))

    with pytest.raises(CollectiveMismatch, match=f"{length} bytes"):
        group.recv(array, 1).wait()
    link.close()


def test_the_length_of_an_early_frame_is_not_believed(world: World) -> None:
    group, link = lying_peer(world)
    link.sock.send(pack_header(MessageHeader(MessageKind.DATA, 0, 2**60, "anything")))

    # The rank cannot send all of it, so it reads what its peer sends.
    with pytest.raises(CollectiveMismatch, match="does not expect yet"):
        group.send(np.zeros(10_000_000), 1).wait()
    link.close()


def announce_two_gigabytes(folder: Path) -> int:
    """Return the memory that an announced frame takes whose payload never comes."""
    with contextlib.ExitStack() as undo:
        world = World(folder, undo)
        group, link = lying_peer(world)
        link.sock.send(pack_header(MessageHeader(MessageKind.DATA, 0, 2**31, "anything")))
        array = np.zeros(10_000_000)
        before = psutil.Process().memory_info().vms
        work = group.send(array, 1)
        while group.bytes_moved < 2**18:
            threading.Event().wait(0.01)
        grown = psutil.Process().memory_info().vms - before
        link.close()
        with pytest.raises(PeerLost):
            work.wait()
        return grown


def test_memory_for_early_frames_grows_with_what_has_arrived(
    in_own_process: Any, tmp_path: Path
) -> None:
    assert in_own_process(announce_two_gigabytes, tmp_path) < 2**30


def write_outside(folder: Path, offset: int, nbytes: int) -> str:
    """Return the error of a rank whose peer names a range outside its memory."""
    store = FileStore(folder)
    with ThreadPoolExecutor(2) as pool:
        joining = [
            pool.submit(
                ShmProcessGroup.connect,
                store,
                generation=1,
                rank=rank,
                world_size=2,
                timeout_s=30,
            )
            for rank in range(2)
        ]
        honest, hostile = (done.result(40) for done in joining)
        array = honest.empty(100_000, np.float32)
        array[...] = 1
        work = honest.all_reduce(array)
        ring: Any = hostile._ring
        ring.begin(f"all_reduce(sum) of {array.size} float32", offset, nbytes)
        try:
            work.wait()
        except CollectiveMismatch as error:
            return str(error)
        finally:
            hostile.abort()
            honest.close()
            hostile.close()
    return "no error"


@pytest.mark.parametrize(
    ("offset", "nbytes"),
    [(2**60, 400_000), (-(2**40), 400_000), (0, 2**62), (2**63 - 8, 400_000), (8192, 8)],
)
def test_ranges_in_shared_memory_are_checked(
    in_own_process: Any, tmp_path: Path, offset: int, nbytes: int
) -> None:
    error = in_own_process(write_outside, tmp_path, offset, nbytes)

    assert "outside the memory" in error or "passed 8 bytes" in error


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def endpoint_of(authority: trustme.CA, folder: Path, trusts: trustme.CA | None = None) -> Endpoint:
    """Return an endpoint with a certificate of an authority."""
    folder.mkdir()
    pair = authority.issue_cert("127.0.0.1", "localhost")
    files = [folder / name for name in ("ca.pem", "cert.pem", "key.pem")]
    (trusts or authority).cert_pem.write_to_path(files[0])
    for blob in pair.cert_chain_pems:
        blob.write_to_path(files[1], append=True)
    pair.private_key_pem.write_to_path(files[2])
    security = SecurityConfig(
        tls_authority_file=files[0],
        tls_certificate_file=files[1],
        tls_key_file=files[2],
        tls_require_client_certificate=True,
    )
    return Endpoint(host="", security=security)


@pytest.fixture
def sealed(authority: trustme.CA, tmp_path: Path) -> Endpoint:
    return endpoint_of(authority, tmp_path / "certificates")


@pytest.mark.parametrize("encrypts", [True, False])
def test_a_listener_sees_gradients_only_without_tls(
    world: World, sealed: Endpoint, encrypts: bool
) -> None:
    endpoint = sealed if encrypts else APART
    redirected = RedirectingStore(world)
    groups = [
        done.result(50)
        for done in (world.join(0, 2, endpoint), world.join(1, 2, endpoint, redirected))
    ]

    def reduce(group: ProcessGroup) -> list[float]:
        array = PATTERN.copy()
        group.all_reduce(array).wait()
        return [float(array.min()), float(array.max())]

    twice = float(PATTERN[0] * 2)
    assert world.run(groups, reduce) == [[twice, twice]] * 2
    assert redirected.relay is not None
    seen = b"".join(redirected.relay.sent)
    assert len(seen) > PATTERN.nbytes
    assert (PATTERN[:4].tobytes() in seen) is not encrypts


def test_every_collective_works_over_tls(world: World, sealed: Endpoint) -> None:
    groups = [done.result(50) for done in [world.join(rank, 3, sealed) for rank in range(3)]]

    def work(group: ProcessGroup) -> bool:
        rank, size = group.rank, group.size
        for count in (3, 50_000, 2_000_000):
            array = np.full(count, rank + 1.0, np.float32)
            group.all_reduce(array).wait()
            assert (array == 6).all()
            group.broadcast(array, 1).wait()
            outputs = [np.empty(count, np.float32) for _ in range(size)]
            group.all_gather(outputs, np.full(count, rank, np.float32)).wait()
            assert [float(output[-1]) for output in outputs] == [0, 1, 2]
            group.all_to_all(outputs, [np.full(count, rank, np.float32)] * size).wait()
            assert [float(output[-1]) for output in outputs] == [0, 1, 2]
        # All send first: what a peer sends meanwhile is received early.
        if rank < 2:
            group.send(np.full(1_000_000, rank, np.float64), 1 - rank).wait()
            received = np.empty(1_000_000)
            group.recv(received, 1 - rank).wait()
            assert (received == 1 - rank).all()
        group.barrier().wait()
        child = group.sub_group([0, 2])
        return child is None or total(child) == 3

    assert world.run(groups, work) == [True] * 3


def test_a_rank_without_tls_is_refused_by_ranks_with_it(world: World, sealed: Endpoint) -> None:
    world.join(0, 2, sealed)

    with pytest.raises(HandshakeRefused, match="other tls setting"):
        raise world.join(1, 2).exception(50) or AssertionError
    # Rank 0 still waits, so that a rank with TLS gets in.
    assert world.join(1, 2, sealed).result(50).size == 2


def test_a_certificate_of_another_authority_is_refused(
    world: World, sealed: Endpoint, authority: trustme.CA, tmp_path: Path
) -> None:
    world.join(0, 2, sealed)
    foreign = endpoint_of(trustme.CA(), tmp_path / "foreign", trusts=authority)
    blind = endpoint_of(authority, tmp_path / "blind", trusts=trustme.CA())

    for endpoint in (foreign, blind):
        error = world.join(1, 2, endpoint).exception(50)
        assert isinstance(error, HandshakeRefused)
    assert world.join(1, 2, sealed).result(50).size == 2


def test_a_relay_with_a_valid_certificate_cannot_stand_between_two_ranks(
    world: World, sealed: Endpoint
) -> None:
    """It passes on the first proofs, and ends TLS with both ranks under a member's certificate."""
    serve, trust = sealed.server_tls(), sealed.client_tls()
    assert serve is not None
    assert trust is not None
    world.join(0, 2, sealed)
    redirected = RedirectingStore(world, (serve(), trust))

    error = world.join(1, 2, sealed, redirected).exception(50)

    assert isinstance(error, HandshakeRefused)
    assert redirected.relay is not None
    assert world.join(1, 2, sealed).result(50).size == 2

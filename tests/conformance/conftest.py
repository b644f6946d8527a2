"""Groups of ranks as threads of this process, the store they meet at, and servers with lanes."""

import contextlib
import dataclasses
import importlib.util
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trustme
from prometheus_client import CollectorRegistry

from gradmesh.protos.errors import StepPending, TableNotFound
from gradmesh.protos.frame import Frame
from gradmesh.protos.owner.v1 import owner_pb2
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2 as pb
from gradmesh.sdk.cluster.servers import METHODS
from gradmesh.sdk.process.network import SecurityConfig, TransportConfig
from gradmesh.sdk.rpc.registry import Registry
from gradmesh.sdk.rpc.servicer import NoContexts, OwnerServicer
from gradmesh.sdk.transport.channel import Channel
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.sdk.transport.metrics import RpcMetrics
from gradmesh.sdk.transport.server import Call, Server
from gradmesh.trainer.process_group import (
    Endpoint,
    LocalProcessGroup,
    NcclProcessGroup,
    ProcessGroup,
    ShmProcessGroup,
    TcpProcessGroup,
)
from tests.own_threads import OwnThreads

WORLDS = [
    ("local", 1),
    ("tcp", 1),
    ("tcp", 2),
    ("tcp", 3),
    ("shm", 1),
    ("shm", 2),
    ("shm", 3),
    ("tcp+shm", 3),
    ("tcp+shm", 5),
]
WORLDS += [("nccl", 1), ("nccl", 2), ("nccl", 3), ("mpi", 2), ("mpi", 3)]
CROWDS = [world for world in WORLDS if world[1] > 1]


def _neighbour(name: str) -> Any:
    """Import a file of this folder."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


nccl_host = _neighbour("nccl_host")
mpi_world = _neighbour("mpi_world")
# NCCL does not report that ranks disagree: the collective times out.
_NCCL_TIMEOUT_S = 2.0

PARAMETER_SERVER = pb.DESCRIPTOR.services_by_name["ParameterServerService"]
OWNER = owner_pb2.DESCRIPTOR.services_by_name["OwnerService"]


class MemoryStore:
    """Keys and values shared by the threads of one process."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: bytes) -> None:
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key: str, timeout_s: float) -> bytes:
        with self._changed:
            if not self._changed.wait_for(lambda: key in self._values, timeout_s):
                raise TimeoutError(key)
            return self._values[key]


class Ranks:
    """The groups of all ranks of one world, and a thread for each."""

    def __init__(self, backend: str, groups: list[ProcessGroup], pool: ThreadPoolExecutor) -> None:
        self.backend = backend.partition("+")[0]
        self.is_chained = "+" in backend
        self.groups = groups
        self.nccl = nccl_host
        self._pool = pool

    @property
    def size(self) -> int:
        return len(self.groups)

    def run(self, job: Callable[[ProcessGroup], Any]) -> list[Any]:
        """Run `job` on every rank at once; return the results, or raise the first error."""
        futures = [self._pool.submit(job, group) for group in self.groups]
        return [future.result(timeout=120) for future in futures]

    def errors(self, job: Callable[[ProcessGroup], Any]) -> list[Exception | None]:
        """Run `job` on every rank at once; return each rank's error."""
        futures = [self._pool.submit(job, group) for group in self.groups]
        return [future.exception(timeout=120) for future in futures]


@pytest.fixture(scope="session")
def mpi_worlds() -> Iterator[Callable[[int], Any]]:
    """Give MPI worlds by their size; each is started once."""
    started: dict[int, Any] = {}

    def world(size: int) -> Any:
        if mpi_world.why_not() is not None:
            pytest.skip(mpi_world.why_not())
        if size not in started:
            started[size] = mpi_world.World(size)
        return started[size]

    yield world
    for each in started.values():
        each.close()


@pytest.fixture
def meet(mpi_worlds: Callable[[int], Any]) -> Iterator[Callable[..., Ranks]]:
    """Build worlds: meet(backend, size, timeout_s) -> Ranks."""
    threads = OwnThreads()
    opened: list[Ranks] = []
    pools: list[ThreadPoolExecutor] = []

    def build(backend: str, size: int, timeout_s: float = 20.0) -> Ranks:
        if backend == "nccl":
            if nccl_host.WHY_NOT is not None:
                pytest.skip(nccl_host.WHY_NOT)
            timeout_s = min(timeout_s, _NCCL_TIMEOUT_S)
        mpi = mpi_worlds(size) if backend == "mpi" else None
        folder = mpi.next_folder() if mpi is not None else ""
        pool = ThreadPoolExecutor(size, thread_name_prefix="rank")
        pools.append(pool)
        shared = MemoryStore()

        def connect(rank: int) -> ProcessGroup:
            if backend == "local":
                return LocalProcessGroup()
            if backend == "mpi":
                proxy: ProcessGroup = mpi_world.MpiGroup.connect(mpi, folder, rank, size, timeout_s)
                return proxy
            kind: Any = {
                "tcp": TcpProcessGroup,
                "shm": ShmProcessGroup,
                "nccl": nccl_host.NcclOnHost,
            }[backend.partition("+")[0]]
            options: dict[str, Any] = {}
            if backend == "tcp+shm":
                # Simulate hosts with two ranks each: 0 and 1, 2 and 3, 4.
                options["endpoint"] = Endpoint(host=f"host {rank // 2}")
            return kind.connect(
                shared, generation=1, rank=rank, world_size=size, timeout_s=timeout_s, **options
            )

        ranks = Ranks(backend, list(pool.map(connect, range(size), timeout=120)), pool)
        opened.append(ranks)
        return ranks

    yield build
    for ranks in opened:
        for group in ranks.groups:
            group.close()
    for pool in pools:
        pool.shutdown()
    assert not [name for name in threads.names() if "process-group" in name]


@pytest.fixture
def gpu_ranks() -> Iterator[Ranks]:
    """Two ranks with a GPU each, as threads of this process."""
    cupy = pytest.importorskip("cupy")
    if not cupy.cuda.is_available() or cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two CUDA devices; no GPU code has run here")
    shared = MemoryStore()
    with ThreadPoolExecutor(2, thread_name_prefix="rank") as pool:

        def connect(rank: int) -> ProcessGroup:
            return NcclProcessGroup.connect(
                shared, rank=rank, world_size=2, timeout_s=10, device=rank
            )

        ranks = Ranks("nccl", list(pool.map(connect, range(2), timeout=120)), pool)
        yield ranks
        for group in ranks.groups:
            group.close()


@pytest.fixture(params=WORLDS, ids=lambda world: f"{world[0]}-w{world[1]}")
def ranks(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, meet: Callable[..., Ranks]
) -> Ranks:
    """A world of every backend and size."""
    # A rank that leaves reads the reasons of the others. This store answers at once, and
    # 700 tests need not wait for it as long as for one across a network.
    monkeypatch.setattr("gradmesh.trainer.process_group.nccl.watchdog._STORE_S", 0.005)
    return meet(*request.param)


@pytest.fixture(params=CROWDS, ids=lambda world: f"{world[0]}-w{world[1]}")
def several_ranks(request: pytest.FixtureRequest, meet: Callable[..., Ranks]) -> Ranks:
    """A world of several ranks."""
    return meet(*request.param)


LANES = ("unary", "stream", "stream+tls", "tcp", "tcp+tls", "shm")


class Echo:
    """A parameter server without rows; its response depends on the requested tables."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.leave = threading.Event()
        self.kept: list[Any] = []
        self.borrowed: list[bool] = []
        self.writeable: list[bool] = []

    def lookup(self, request: Frame[Any], call: Call) -> Frame[Any]:
        self.borrowed.append(call.borrowed)
        self.writeable += [array.flags.writeable for array in request.arrays]
        if "wait" in request.message.tables:
            self.entered.release()
            self.leave.wait(120)
        arrays = []
        for array in request.arrays:
            copy = call.empty(array.shape, array.dtype)
            copy[...] = array
            arrays.append(copy)
        return Frame(pb.LookupResponse(), arrays)

    def push(self, request: Frame[Any], call: Call) -> pb.PushResponse:
        if request.message.tables[:] == ["missing"]:
            raise TableNotFound("no table 'missing'", table="missing")
        if request.message.tables[:] == ["bug"]:
            raise ZeroDivisionError("secret detail")
        if request.message.tables[:] == ["soon"]:
            self.kept.append(None)
            if len(self.kept) < 3:
                raise StepPending("not yet")
        return pb.PushResponse(applied=True)

    def backward(self, request: Frame[Any], call: Call) -> pb.BackwardResponse:
        self.kept += [a.copy() if call.borrowed else a for a in request.arrays]
        return pb.BackwardResponse()

    def apply(self, request: pb.ApplyRequest, call: Call) -> pb.ApplyResponse:
        return pb.ApplyResponse(applied_steps=int(call.deadline.remaining_s() * 1000))

    def __getattr__(self, name: str) -> Any:
        """Serve every other rpc, though no test calls it."""
        return self.apply


class LaneMesh:
    """A server and channels to it, all of one lane."""

    def __init__(self, lane: str, folder: Path, undo: contextlib.ExitStack) -> None:
        self.threads = OwnThreads()
        self.lane = lane.partition("+")[0]
        self._undo = undo
        self.server_security = self.security = SecurityConfig()
        if lane.endswith("tls"):
            self.server_security, self.security = _certificates(folder)
        self.echo = Echo()
        self.server = self.serve(TransportConfig())
        self.registry = CollectorRegistry()
        self.channel = self.connect(metrics=RpcMetrics("client", self.registry))

    def serve(self, transport: TransportConfig) -> Server:
        services = {
            PARAMETER_SERVER: self.echo,
            OWNER: OwnerServicer("e", "r", 1, Registry(), NoContexts()),
        }
        server = Server(
            services, listen="127.0.0.1:0", security=self.server_security, transport=transport
        )
        server.start()
        self._undo.callback(server.drain, 1.0)
        return server

    def connect(self, server: Server | None = None, **options: Any) -> Channel:
        metrics = RpcMetrics("client", CollectorRegistry())
        channel = Channel(
            (server or self.server).address,
            "echo",
            security=options.pop("security", self.security),
            lane=options.pop("lane", self.lane),
            metrics=options.pop("metrics", metrics),
            **options,
        )
        self._undo.callback(channel.close)
        return channel

    def connection_threads(self) -> list[str]:
        """Return the threads that serve connections, without the listeners."""
        kinds = ("lane-shm-", "lane-tcp-")
        return [name for name in self.threads.names() if name.startswith(kinds)]

    def lookup(
        self, *arrays: Any, table: str = "t", timeout_s: float = 10, channel: Channel | None = None
    ) -> list[Any]:
        frame = Frame(pb.LookupRequest(tables=[table]), list(arrays))
        method = METHODS["Lookup"]
        return (channel or self.channel).call(method, frame, Deadline.after(timeout_s)).arrays

    def calls(self, status: str = "OK", name: str = "Lookup") -> dict[str, float]:
        """Return how many calls of the channel took each lane."""
        found: dict[str, float] = {}
        for metric in self.registry.collect():
            for sample in metric.samples:
                of = sample.labels
                if sample.name.endswith("calls_total") and (
                    of["status"] == status and of["rpc"].endswith(f"/{name}")
                ):
                    found[of["lane"]] = found.get(of["lane"], 0) + sample.value
        return found

    def push(self, table: str, timeout_s: float = 10) -> Any:
        frame = Frame(pb.PushRequest(tables=[table]), [np.arange(3)])
        return self.channel.call(METHODS["Push"], frame, Deadline.after(timeout_s))


def _certificates(folder: Path) -> tuple[SecurityConfig, SecurityConfig]:
    """Return the security of a server and of a client, with certificates for both."""
    authority = trustme.CA()
    pair = authority.issue_cert("127.0.0.1", "localhost")
    files = [folder / name for name in ("ca.pem", "cert.pem", "key.pem")]
    authority.cert_pem.write_to_path(files[0])
    for blob in pair.cert_chain_pems:
        blob.write_to_path(files[1], append=True)
    pair.private_key_pem.write_to_path(files[2])
    (folder / "token").write_text("sesame")
    client = SecurityConfig(
        tls_authority_file=files[0],
        tls_certificate_file=files[1],
        tls_key_file=files[2],
        token_file=folder / "token",
    )
    return dataclasses.replace(client, tls_require_client_certificate=True), client


@pytest.fixture(params=LANES)
def lane(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def lanes(lane: str, tmp_path: Path) -> Iterator[LaneMesh]:
    """A server with a channel to it, on each lane in turn."""
    with contextlib.ExitStack() as undo:
        yield LaneMesh(lane, tmp_path, undo)


@pytest.fixture
def lane_mesh(tmp_path: Path) -> Iterator[Callable[[str], LaneMesh]]:
    """Make a server with a channel to it, on a lane of the test's choice."""
    with contextlib.ExitStack() as undo:
        yield lambda lane: LaneMesh(lane, tmp_path, undo)

"""A mesh inside the test's process, on free ports: coordinator, parameter servers, clients."""

import logging
import os
import random
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from gradmesh.launch.screen import ScreenHandler
from gradmesh.protos.coordinator.v1 import coordinator_pb2
from gradmesh.protos.owner.v1 import owner_pb2
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2
from gradmesh.sdk.mesh.connect import join_mesh
from gradmesh.sdk.mesh.mesh import Mesh
from gradmesh.sdk.process.network import SecurityConfig, split
from gradmesh.sdk.rpc.agent import Agent
from gradmesh.sdk.rpc.registry import Registry
from gradmesh.sdk.rpc.servicer import OwnerServicer
from gradmesh.sdk.transport.channel import Dialer
from gradmesh.sdk.transport.identity import MemberIdentity
from gradmesh.sdk.transport.policy import Timeouts
from gradmesh.sdk.transport.security import TicketCheck, TokenCheck
from gradmesh.sdk.transport.server import Server
from gradmesh.services.coordinator.journal import Journal
from gradmesh.services.coordinator.machine import Machine
from gradmesh.services.coordinator.servicer import CoordinatorServicer
from gradmesh.services.parameter_server.coordinator_view import CoordinatorView
from gradmesh.services.parameter_server.migration import Mover
from gradmesh.services.parameter_server.servicer import ParameterServerServicer
from gradmesh.services.parameter_server.store import TableStore
from tests.own_process import in_own_process as in_own_process
from tests.own_threads import OwnThreads, remember_origins
from tests.skip_summary import skip_summary

remember_origins()

# A shell makes its background jobs ignore Ctrl-C; processes that tests interrupt inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run in another order with TEST_ORDER_SEED=N, or a share of the tests with TEST_SLICE=K/N.

    A share is every N-th test from the K-th, after `-m` has chosen. Other orders find tests that
    need or disturb others.
    """
    if seed := os.environ.get("TEST_ORDER_SEED"):
        # Moving single tests would set up fixtures of modules and sessions many times, so whole
        # files move, and tests within a file.
        chance = random.Random(int(seed))
        files = sorted({str(item.path) for item in items})
        order = dict(zip(files, chance.sample(range(len(files)), len(files)), strict=True))
        items.sort(key=lambda item: (order[str(item.path)], chance.random()))
    if share := os.environ.get("TEST_SLICE"):
        first, step = (int(number) for number in share.split("/"))
        chosen = items[first % step :: step]
        config.hook.pytest_deselected(items=[item for item in items if item not in set(chosen)])
        items[:] = chosen


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print one summary of the skipped tests; a line for each reason would hide the rest."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = [str(report.longrepr[2]) for report in skipped if isinstance(report.longrepr, tuple)]
    expression = terminalreporter.config.getoption("markexpr")
    terminalreporter.write_line(skip_summary(reasons, "not slow" in expression))


@pytest.fixture(autouse=True)
def _no_screen_is_left() -> Iterator[None]:
    """Remove the screens that `gradmesh up` sets up for logs where a test calls it in-process."""
    yield
    for handler in [one for one in logging.root.handlers if isinstance(one, ScreenHandler)]:
        logging.root.removeHandler(handler)


_COORDINATOR = coordinator_pb2.DESCRIPTOR.services_by_name["CoordinatorService"]
_PARAMETER_SERVER = parameter_server_pb2.DESCRIPTOR.services_by_name["ParameterServerService"]
_OWNER = owner_pb2.DESCRIPTOR.services_by_name["OwnerService"]


class Loop:
    """Calls a function periodically until closed."""

    def __init__(self, function: Callable[[], object], every_s: float) -> None:
        self._function = function
        self._every_s = every_s
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="test-loop", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closed.wait(self._every_s):
            self._function()

    def close(self) -> None:
        self._closed.set()
        self._thread.join(20)


class CoordinatorNode:
    """A coordinator that serves."""

    def __init__(
        self, cluster: "Cluster", listen: str, state_dir: Path | None, threads: int
    ) -> None:
        self.journal = Journal(state_dir)
        self.machine = Machine(
            parameter_servers=cluster.parameter_servers,
            trainers=cluster.trainers,
            lease_s=cluster.lease_s,
            journal=self.journal,
            min_trainers=cluster.min_trainers,
            join_window_s=0.5,
        )
        self.servicer = CoordinatorServicer(self.machine, max_waiters=threads // 2)
        self.server = Server(
            {_COORDINATOR: cluster.wrap(self.servicer)},
            listen=listen,
            security=cluster.security,
            threads=threads,
            check=TokenCheck(cluster.security or SecurityConfig(), self.machine.sessions.member_of),
        )
        self.server.start()
        self._loop = Loop(self.servicer.sweep, 0.05)

    def close(self) -> None:
        self._loop.close()
        self.servicer.close()
        self.server.drain(0)
        self.journal.close()


class ServerNode:
    """A parameter server that serves."""

    def __init__(self, cluster: "Cluster", name: str, replace: bool = False) -> None:
        self.name = name
        self.identity = identity = MemberIdentity(name)
        self.incarnation = identity.incarnation
        security = cluster.security or SecurityConfig()
        directory = CoordinatorView()
        self.store = TableStore(
            name,
            directory.describe,
            directory.shard_map,
            max_bytes=cluster.max_store_bytes,
            max_waiters=cluster.server_threads // 2,
        )
        dial = Dialer(security=cluster.security).of_process(identity)
        agent = Agent(name, self.incarnation, Registry(), dial)
        owner = OwnerServicer(
            name, "parameter-server", self.incarnation, Registry(), self.store.contexts, agent
        )
        rows = ParameterServerServicer(self.store, openers=agent.openers)
        self.server = Server(
            {
                _PARAMETER_SERVER: cluster.wrap(rows),
                _OWNER: cluster.wrap(owner),
            },
            listen="127.0.0.1:0",
            security=cluster.security,
            threads=cluster.server_threads,
            max_frame_bytes=cluster.max_frame_bytes,
            check=TicketCheck(security, identity) if security.authenticates else None,
        )
        self.server.start()
        self.mesh = join_mesh(
            cluster.address,
            name=name,
            role="parameter-server",
            address=self.server.address,
            incarnation=self.incarnation,
            replace=replace,
            dial=dial,
        )
        agent.openers.join(self.mesh.connection.coordinator)
        directory.join(self.mesh.connection)
        self.mover = Mover(self.store, self.mesh.connection)
        self._loop = Loop(lambda: self.store.fence(self.mesh.connection.generation), 0.05)

    def close(self) -> None:
        self._loop.close()
        self.mover.close()
        self.mesh.close()
        self.store.close()
        self.server.drain(0)


class Cluster:
    """A coordinator and its parameter servers, all in this process."""

    def __init__(
        self,
        *,
        parameter_servers: int = 2,
        trainers: int = 1,
        min_trainers: int = 0,
        lease_s: float = 30.0,
        state_dir: Path | None = None,
        security: SecurityConfig | None = None,
        server_threads: int = 8,
        max_store_bytes: int = 1 << 28,
        max_frame_bytes: int = 1 << 24,
        start_servers: bool = True,
        wrap: Callable[[Any], Any] = lambda servicer: servicer,
    ) -> None:
        self.wrap = wrap
        self.parameter_servers = parameter_servers
        self.trainers = trainers
        self.min_trainers = min_trainers
        self.lease_s = lease_s
        self.security = security
        self.server_threads = server_threads
        self.max_store_bytes = max_store_bytes
        self.max_frame_bytes = max_frame_bytes
        self._state_dir = state_dir
        self._meshes: list[Mesh] = []
        self._held: list[socket.socket] = []
        self.servers: list[ServerNode] = []
        self.coordinator = CoordinatorNode(self, "127.0.0.1:0", state_dir, 16)
        self.address = self.coordinator.server.address
        if start_servers:
            self.servers = [ServerNode(self, f"ps-{i}") for i in range(parameter_servers)]

    @property
    def stores(self) -> list[TableStore]:
        return [node.store for node in self.servers]

    def connect(self, name: str | None = None, **options: Any) -> Mesh:
        """Join as a client, or in another role; options are those of `join` and of `Dialer`."""
        options.setdefault("security", self.security)
        if options.get("role") == "trainer":
            options.setdefault("address", "127.0.0.1:1")
        timeout_s = options.pop("timeout_s", 30.0)
        options.setdefault("timeouts", Timeouts(join_s=timeout_s, call_s=timeout_s))
        channels = {f.name: options.pop(f.name) for f in fields(Dialer) if f.name in options}
        name = name or f"client-{uuid.uuid4().hex[:8]}"
        mesh = join_mesh(self.address, name=name, dial=Dialer(**channels), **options)
        self._meshes.append(mesh)
        return mesh

    def add_server(self, name: str, replace: bool = False) -> ServerNode:
        node = ServerNode(self, name, replace)
        self.servers.append(node)
        return node

    def restart_server(self, index: int) -> None:
        """Replace a server by a fresh one with the same name on another port."""
        self.servers[index].close()
        self._hold(self.servers[index].server.address)
        self.servers[index] = ServerNode(self, self.servers[index].name)

    def stop_coordinator(self) -> None:
        self.coordinator.close()
        self._hold(self.address)

    def _hold(self, address: str) -> None:
        """Keep a released port from the servers of other tests; nothing listens there."""
        held = socket.socket()
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(split(address))
        self._held.append(held)

    def start_coordinator(self) -> None:
        """Start a coordinator at the address of the one that was stopped."""
        self.coordinator = CoordinatorNode(self, self.address, self._state_dir, 16)

    def close(self) -> None:
        for mesh in self._meshes:
            mesh.close()
        for node in self.servers:
            node.close()
        self.coordinator.close()
        for held in self._held:
            held.close()


def wait_until(is_true: Callable[[], object], timeout_s: float = 60.0) -> None:
    """Return once the condition holds.

    Raises:
        TimeoutError: It did not hold in time.
    """
    pause = threading.Event()
    deadline = time.monotonic() + timeout_s
    while not is_true():
        if time.monotonic() > deadline:
            raise TimeoutError("the condition did not come true in time")
        pause.wait(0.005)


@pytest.fixture
def eventually() -> Callable[..., None]:
    return wait_until


@pytest.fixture
def make_cluster() -> Iterator[Callable[..., Cluster]]:
    """Make meshes; close them afterwards and check that no thread of the test is left."""
    threads = OwnThreads()
    made: list[Cluster] = []

    def make(**options: Any) -> Cluster:
        made.append(Cluster(**options))
        return made[-1]

    yield make
    for cluster in made:
        cluster.close()

    try:
        wait_until(lambda: not threads.alive(), timeout_s=20)
    except TimeoutError:
        raise AssertionError(f"threads left: {', '.join(threads.names())}") from None


@pytest.fixture
def own_threads() -> OwnThreads:
    """The threads that the test makes."""
    return OwnThreads()


@pytest.fixture
def cluster(make_cluster: Callable[..., Cluster]) -> Cluster:
    """A mesh of two parameter servers and one trainer."""
    return make_cluster()

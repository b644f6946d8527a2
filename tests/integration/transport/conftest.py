"""Real servers and channels on loopback, and a proxy between them that breaks connections."""

import contextlib
import logging
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gradmesh.protos.autograd.v1 import autograd_pb2
from gradmesh.protos.coordinator.v1 import coordinator_pb2
from gradmesh.protos.method import methods_of
from gradmesh.protos.owner.v1 import owner_pb2
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2
from gradmesh.sdk.autograd.registry import ContextRegistry
from gradmesh.sdk.autograd.servicer import AutogradServicer
from gradmesh.sdk.mesh.connect import join_mesh
from gradmesh.sdk.optim.step import StepHandler
from gradmesh.sdk.process.network import join, split
from gradmesh.sdk.rpc.agent import Agent
from gradmesh.sdk.rpc.registry import Registry
from gradmesh.sdk.rpc.servicer import OwnerServicer
from gradmesh.sdk.transport.channel import Channel
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.sdk.transport.server import Server
from gradmesh.services.coordinator.journal import Journal
from gradmesh.services.coordinator.machine import Machine
from gradmesh.services.coordinator.servicer import CoordinatorServicer
from gradmesh.services.parameter_server.coordinator_view import CoordinatorView
from gradmesh.services.parameter_server.servicer import ParameterServerServicer
from gradmesh.services.parameter_server.store import TableStore

COORDINATOR = coordinator_pb2.DESCRIPTOR.services_by_name["CoordinatorService"]
PARAMETER_SERVER = parameter_server_pb2.DESCRIPTOR.services_by_name["ParameterServerService"]
AUTOGRAD = autograd_pb2.DESCRIPTOR.services_by_name["AutogradService"]
OWNER = owner_pb2.DESCRIPTOR.services_by_name["OwnerService"]
METHODS = methods_of(OWNER)


class Scripted:
    """Serves OwnerService: each rpc runs the behaviour that the test sets, and is counted."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.behaviours: dict[str, Callable[[Any, Any], Any]] = {
            "describe": lambda request, call: owner_pb2.DescribeResponse(name="here")
        }

    def __getattr__(self, verb: str) -> Callable[[Any, Any], Any]:
        def serve(request: Any, call: Any) -> Any:
            self.calls[verb] += 1
            return self.behaviours[verb](request, call)

        return serve


class FaultProxy:
    """Forwards TCP connections; can refuse, stall or reset them.

    Args:
        target: Address of the server.
    """

    def __init__(self, target: str) -> None:
        self._target = split(target)
        self._flowing = threading.Event()
        self._flowing.set()
        self.refusing = False
        self.accepted = 0
        self._lock = threading.Lock()  # guards _sockets
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = join(*self._listener.getsockname()[:2])
        threading.Thread(target=self._accept, daemon=True).start()

    def refuse(self) -> None:
        """Break all connections and take no new ones."""
        self.refusing = True
        self.reset()

    def allow(self) -> None:
        self.refusing = False

    def stall(self) -> None:
        """Accept, and forward nothing."""
        self._flowing.clear()

    def reset(self) -> None:
        """Reset all connections."""
        with self._lock:
            sockets, self._sockets = self._sockets, []
        for sock in sockets:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                sock.shutdown(socket.SHUT_RD)  # wakes the thread that reads from it
            sock.close()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._flowing.set()
        self.reset()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self.accepted += 1
                with self._lock:
                    self._sockets.append(near)
                if self.refusing:
                    self.reset()
                    continue
                far = socket.create_connection(self._target)
                with self._lock:
                    self._sockets.append(far)
                for a, b in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=(a, b), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._flowing.wait(120)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)


@pytest.fixture
def script() -> Scripted:
    return Scripted()


@pytest.fixture
def serve(script: Scripted) -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start(servicer: object = None, **options: Any) -> Server:
        options.setdefault("listen", "127.0.0.1:0")
        server = Server({OWNER: servicer or script}, **options)
        server.start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.drain(0.1)


@pytest.fixture
def dial() -> Iterator[Callable[..., Channel]]:
    with contextlib.ExitStack() as stack:
        yield lambda address, **options: stack.enter_context(
            Channel(address, options.pop("worker", "ps-0"), **options)
        )


@pytest.fixture
def fault_proxy() -> Iterator[Callable[[str], FaultProxy]]:
    with contextlib.ExitStack() as stack:

        def start(target: str) -> FaultProxy:
            proxy = FaultProxy(target)
            stack.callback(proxy.close)
            return proxy

        yield start


@pytest.fixture
def describe() -> Callable[..., Any]:
    """Call the simplest rpc there is, a repeatable one."""

    def call(channel: Channel, timeout_s: float = 10.0) -> Any:
        request = owner_pb2.DescribeRequest()
        return channel.call(METHODS["Describe"], request, Deadline.after(timeout_s))

    return call


@pytest.fixture(autouse=True)
def visible_logs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


@pytest.fixture
def mesh() -> Iterator[tuple[str, str]]:
    """A coordinator and a parameter server; their addresses."""
    journal = Journal(None)
    machine = Machine(parameter_servers=1, trainers=1, lease_s=60, journal=journal)
    coordinator = Server({COORDINATOR: CoordinatorServicer(machine)}, listen="127.0.0.1:0")
    coordinator.start()
    directory = CoordinatorView()
    store = TableStore(
        "ps-0", directory.describe, directory.shard_map, max_bytes=2**20, max_waiters=4
    )
    functions = Registry()
    functions.register("double", lambda x: x * 2)
    agent = Agent("ps-0", 1, functions, Channel)
    owner = OwnerServicer("ps-0", "parameter-server", 1, functions, store.contexts, agent)
    contexts = ContextRegistry()
    server = Server(
        {
            PARAMETER_SERVER: ParameterServerServicer(store),
            OWNER: owner,
            AUTOGRAD: AutogradServicer(contexts, "ps-0", 1, StepHandler(agent, contexts).step),
        },
        listen="127.0.0.1:0",
    )
    server.start()
    member = join_mesh(
        coordinator.address, name="ps-0", role="parameter-server", address=server.address
    )
    directory.join(member.connection)
    yield coordinator.address, server.address
    member.close()
    server.drain(1)
    coordinator.drain(1)
    journal.close()

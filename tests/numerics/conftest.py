"""A real mesh inside this process: coordinator and parameter servers on free ports."""

import contextlib
from collections.abc import Callable, Iterator

import pytest

from gradmesh.protos.coordinator.v1 import coordinator_pb2
from gradmesh.protos.owner.v1 import owner_pb2
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2
from gradmesh.sdk.mesh.connect import join_mesh
from gradmesh.sdk.mesh.mesh import Mesh
from gradmesh.sdk.rpc.registry import Registry
from gradmesh.sdk.rpc.servicer import OwnerServicer
from gradmesh.sdk.transport.server import Server
from gradmesh.services.coordinator.journal import Journal
from gradmesh.services.coordinator.machine import Machine
from gradmesh.services.coordinator.servicer import CoordinatorServicer
from gradmesh.services.parameter_server.coordinator_view import CoordinatorView
from gradmesh.services.parameter_server.servicer import ParameterServerServicer
from gradmesh.services.parameter_server.store import TableStore
from tests.own_threads import OwnThreads


class Cluster:
    """Servers that run until the test ends, and the trainers' connections to them."""

    def __init__(self, undo: contextlib.ExitStack, parameter_servers: int, trainers: int) -> None:
        self._undo = undo
        journal = Journal(None)
        undo.callback(journal.close)
        machine = Machine(
            parameter_servers=parameter_servers, trainers=trainers, lease_s=30, journal=journal
        )
        service = coordinator_pb2.DESCRIPTOR.services_by_name["CoordinatorService"]
        self.address = self._serve({service: CoordinatorServicer(machine)})
        for number in range(parameter_servers):
            self._start_parameter_server(f"parameter-server-{number}")

    def connect(self, name: str, role: str) -> Mesh:
        mesh = join_mesh(self.address, name=name, role=role, address="127.0.0.1:1")
        self._undo.callback(mesh.close)
        return mesh

    def _serve(self, services) -> str:
        server = Server(services, listen="127.0.0.1:0", threads=8)
        server.start()
        self._undo.callback(server.drain, 1.0)
        return server.address

    def _start_parameter_server(self, name: str) -> None:
        directory = CoordinatorView()
        store = TableStore(
            name, directory.describe, directory.shard_map, max_bytes=1 << 30, max_waiters=4
        )
        owner = OwnerServicer(name, "parameter-server", 1, Registry(), store.contexts)
        address = self._serve(
            {
                parameter_server_pb2.DESCRIPTOR.services_by_name[
                    "ParameterServerService"
                ]: ParameterServerServicer(store),
                owner_pb2.DESCRIPTOR.services_by_name["OwnerService"]: owner,
            }
        )
        mesh = join_mesh(self.address, name=name, role="parameter-server", address=address)
        self._undo.callback(mesh.close)
        directory.join(mesh.connection)


@pytest.fixture
def start_cluster() -> Iterator[Callable[[int, int], Cluster]]:
    """Start a mesh: start_cluster(parameter_servers, trainers) -> Cluster."""
    threads = OwnThreads()
    with contextlib.ExitStack() as undo:
        yield lambda parameter_servers, trainers: Cluster(undo, parameter_servers, trainers)
    assert not [name for name in threads.names() if "process-group" in name]

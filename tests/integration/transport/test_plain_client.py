"""Any gRPC client can call every rpc: here one in another process, without our codec and numpy."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradmesh.protos.coordinator.v1 import coordinator_pb2
from gradmesh.protos.owner.v1 import owner_pb2
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2
from gradmesh.protos.repeatable import REPEATABLE
from gradmesh.sdk.mesh.mesh import connect
from gradmesh.sdk.owner.registry import Registry
from gradmesh.sdk.owner.servicer import OwnerServicer
from gradmesh.sdk.transport.server import Server
from gradmesh.services.coordinator.journal import Journal
from gradmesh.services.coordinator.machine import Machine
from gradmesh.services.coordinator.servicer import CoordinatorServicer
from gradmesh.services.parameter_server.directory import Directory
from gradmesh.services.parameter_server.servicer import ParameterServerServicer
from gradmesh.services.parameter_server.store import Store

ROOT = Path(__file__).resolve().parents[3]
COORDINATOR = coordinator_pb2.DESCRIPTOR.services_by_name["CoordinatorService"]
OWNER = owner_pb2.DESCRIPTOR.services_by_name["OwnerService"]
PARAMETER_SERVER = parameter_server_pb2.DESCRIPTOR.services_by_name["ParameterServerService"]


@pytest.fixture
def stubs(tmp_path: Path) -> Path:
    """A folder with the generated modules and nothing else of gradmesh."""
    for module in (ROOT / "protos").glob("*/v1/*_pb2*.py"):
        target = tmp_path / "gradmesh" / module.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(module, target)
    for folder in (tmp_path / "gradmesh", *(tmp_path / "gradmesh").rglob("*/")):
        if folder.is_dir():
            (folder / "__init__.py").touch()
    return tmp_path


@pytest.fixture
def mesh() -> Iterator[tuple[str, str]]:
    """A coordinator and a parameter server; their addresses."""
    journal = Journal(None)
    machine = Machine(parameter_servers=1, trainers=1, lease_s=60, journal=journal)
    coordinator = Server({COORDINATOR: CoordinatorServicer(machine)}, listen="127.0.0.1:0")
    coordinator.start()
    directory = Directory()
    store = Store("ps-0", directory.describe, directory.shard_map, max_bytes=2**20, max_waiters=4)
    functions = Registry()
    functions.register("double", lambda x: x * 2)
    owner = OwnerServicer("ps-0", "parameter-server", 1, functions, store.contexts)
    server = Server(
        {PARAMETER_SERVER: ParameterServerServicer(store), OWNER: owner}, listen="127.0.0.1:0"
    )
    server.start()
    member = connect(
        coordinator.address, name="ps-0", role="parameter-server", address=server.address
    )
    directory.join(member)
    yield coordinator.address, server.address
    member.close()
    server.drain(1)
    coordinator.drain(1)
    journal.close()


def test_a_plain_client_calls_every_rpc(stubs: Path, mesh: tuple[str, str]) -> None:
    script = Path(__file__).with_name("plain_client.py")

    done = subprocess.run(
        [sys.executable, "-I", script, stubs, *mesh],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)) == set(REPEATABLE)

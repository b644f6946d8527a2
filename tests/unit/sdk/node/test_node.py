import subprocess
import sys

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from gradmesh.sdk.node.config import MemberConfig
from gradmesh.sdk.node.node import Node
from gradmesh.sdk.process.process import ProcessConfig
from gradmesh.sdk.rpc import current
from gradmesh.sdk.rpc.current import RpcNotRunning


@pytest.fixture
def make_node():
    made = []

    def make(role="worker", registry=None, **options):
        config = MemberConfig(name="node-0", coordinator="127.0.0.1:1", join_timeout_s=0.1)
        node = Node(config, role, ProcessConfig(), registry, threads=2, timeout_s=1.0, **options)
        made.append(node)
        return node

    yield make
    for node in made:
        node.leave(0)


@pytest.mark.parametrize("role", ["parameter-server", "trainer", "worker"])
def test_every_role_exports_the_lead_of_its_clients(make_node, role):
    registry = CollectorRegistry()

    make_node(role, registry)

    assert b"gradmesh_optimizer_lead_steps 0.0" in generate_latest(registry)


def test_a_node_may_leave_at_any_stage_of_its_start(make_node):
    built, serving = make_node(), make_node(is_current=False)
    serving.serve()

    for node in (built, serving, built):
        node.leave(0)

    assert built.agent.closed
    assert serving.agent.closed


def test_a_process_has_one_current_node(make_node):
    node = make_node()
    assert current.current_agent() is node.agent

    with pytest.raises(RpcNotRunning):
        make_node()

    node.leave(0)
    with pytest.raises(RpcNotRunning):
        current.current_agent()


def test_every_node_serves_registered_functions():
    served = subprocess.run(
        [sys.executable, "-c", _NAMES], capture_output=True, text=True, timeout=50, check=True
    ).stdout.split()

    assert {"gradmesh.remote_module.create", "gradmesh.optim.create", "gradmesh.rpc.gather"} <= set(
        served
    ), served


_NAMES = """
from gradmesh.sdk.node import node
from gradmesh.sdk.rpc.registry import REGISTRY
print(*REGISTRY.names())
"""

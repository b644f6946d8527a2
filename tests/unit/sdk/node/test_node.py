"""Nodes become current for a whole process, so each test runs in a process of its own."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from gradmesh.sdk.node.config import MemberConfig
from gradmesh.sdk.node.node import Node
from gradmesh.sdk.process.process import ProcessConfig
from gradmesh.sdk.rpc import current
from gradmesh.sdk.rpc.current import RpcNotRunning
from gradmesh.sdk.rpc.registry import REGISTRY
from gradmesh.sdk.transport.policy import Limits


@contextlib.contextmanager
def node(role: Any = "worker", registry: Any = None, **options: Any) -> Iterator[Node]:
    config = MemberConfig(name="node-0", coordinator="127.0.0.1:1", join_timeout_s=0.1)
    made = Node(
        config, role, ProcessConfig(), registry, limits=Limits(threads=2), timeout_s=1.0, **options
    )
    try:
        yield made
    finally:
        made.leave(0)


def exported_metrics(role: str) -> bytes:
    registry = CollectorRegistry()
    with node(role, registry):
        return generate_latest(registry)


@pytest.mark.parametrize("role", ["parameter-server", "trainer", "worker"])
def test_every_role_exports_the_lead_of_its_clients(in_own_process, role):
    assert b"gradmesh_optimizer_lead_steps 0.0" in in_own_process(exported_metrics, role)


def leave_at_every_stage() -> list[bool]:
    with node() as built, node(is_current=False) as serving:
        serving.serve()

        for one in (built, serving, built):
            one.leave(0)

        return [built.agent.closed, serving.agent.closed]


def test_a_node_may_leave_however_far_it_came(in_own_process):
    assert in_own_process(leave_at_every_stage) == [True, True]


def second_current_node() -> tuple[bool, str, str]:
    with node() as first:
        is_current = current.current_agent() is first.agent
        with pytest.raises(RpcNotRunning) as refused, node():
            pass
    with pytest.raises(RpcNotRunning) as ended:
        current.current_agent()
    return is_current, str(refused.value), str(ended.value)


def test_a_process_has_one_current_node(in_own_process):
    is_current, refused, ended = in_own_process(second_current_node)

    assert is_current
    assert "already, as 'node-0'" in refused
    assert "gm.rpc.init" in ended


def registered_names() -> list[str]:
    return REGISTRY.names()


def test_every_node_serves_registered_functions(in_own_process):
    names = in_own_process(registered_names)

    assert {
        "gradmesh.remote_module.create",
        "gradmesh.optim.create",
        "gradmesh.rpc.gather",
    } <= set(names)

"""Four worker processes, started once and used by all tests; the test's process is a fifth."""

import contextlib
import gc
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import gradmesh as gm
from gradmesh.sdk.node.node import Node
from gradmesh.sdk.rpc import current
from gradmesh.sdk.rpc.agent import Agent
from gradmesh.sdk.rpc.shutdown import close

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import rpc_async_functions as rpc_async_functions  # noqa: E402

from tests.footprint import ROUNDS, Rounds, let_go  # noqa: E402

WORKERS = [f"worker-{rank}" for rank in range(4)]


@pytest.fixture(scope="session")
def rpc_cluster() -> Iterator[gm.LocalCluster]:
    """A coordinator, a parameter server and four workers, each a process."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(HERE), str(HERE.parents[2]), before])
    )
    settings = {
        "rpc.imports": ["rpc_async_functions", "tests.footprint"],
        "coordinator.lease_s": 5.0,
    }
    try:
        with gm.LocalCluster(parameter_servers=1, workers=4, settings=settings) as cluster:
            yield cluster
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


@pytest.fixture(scope="session")
def address(rpc_cluster: gm.LocalCluster) -> str:
    return rpc_cluster.address


@pytest.fixture(scope="session")
def driver(address: str) -> Iterator[Agent]:
    """This process as a worker called "driver"; it waits until the four others have joined."""
    agent = gm.rpc.init("driver", coordinator=address, rank=9).agent
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: agent.closed or close(agent, graceful=False))
        gm.rpc.wait_for_workers(*WORKERS)
        yield agent


@pytest.fixture(scope="module")
def rounds(driver: Agent) -> Rounds:
    return Rounds([*WORKERS, driver.name])


@pytest.fixture(scope="module", autouse=True, params=range(ROUNDS) if ROUNDS > 1 else None)
def one_round(rounds: Rounds) -> Iterator[None]:
    """One of the rounds in which a module runs; all in the same processes."""
    yield
    if ROUNDS > 1:
        rounds.end()


@pytest.fixture(autouse=True)
def through(driver: Agent, request: pytest.FixtureRequest) -> Iterator[None]:
    """Calls of a test go through the driver, and leak nothing."""
    token = current.here.set(driver)
    yield
    current.here.reset(token)
    let_go(request)
    gc.collect()
    assert driver.outstanding.wait_idle(driver.caller.deadline(20))


@pytest.fixture
def make_node(address: str) -> Iterator[Callable[..., Node]]:
    """Make further workers in this process; closed afterwards."""
    made: list[Node] = []

    def make(name: str, **options: Any) -> Node:
        made.append(gm.rpc.init(name, **{"coordinator": address, "install": False, **options}))
        return made[-1]

    yield make
    for node in made:
        if not node.agent.closed:
            close(node.agent, graceful=False)


@pytest.fixture
def make_agent(make_node: Callable[..., Node]) -> Callable[..., Agent]:
    """Make further workers in this process; return their agents."""
    return lambda name, **options: make_node(name, **options).agent


def crash(node: Node) -> None:
    """End a worker as a killed process ends: without leaving the mesh."""
    assert node.server is not None
    node.server.drain(0)
    node.agent.close()


@pytest.fixture(name="crash")
def crash_fixture() -> Callable[[Node], None]:
    return crash


@contextlib.contextmanager
def speaking_as(agent: Agent) -> Iterator[Agent]:
    """Make calls through another agent."""
    token = current.here.set(agent)
    try:
        yield agent
    finally:
        current.here.reset(token)


@pytest.fixture
def as_agent() -> Callable[[Agent], Any]:
    return speaking_as


@pytest.fixture
def own_mesh(make_cluster: Callable[..., Any]) -> str:
    """The coordinator of a mesh without members."""
    address: str = make_cluster(parameter_servers=1, start_servers=False).address
    return address

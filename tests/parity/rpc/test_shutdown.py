"""Shutdown: graceful with stragglers, with a deadline, at once, by a kill."""

import math
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rpc_async_functions import never
from rpc_functions import add, chain, sleep, whoami

import gradmesh as gm
from gradmesh.protos import errors
from gradmesh.sdk.node.node import Node
from gradmesh.sdk.rpc.agent import Agent
from gradmesh.sdk.rpc.shutdown import close
from tests.own_threads import OwnThreads


@pytest.fixture
def world(make_agent: Callable[..., Agent]) -> list[Agent]:
    """Three workers that start together, with ranks of their own."""
    agents: dict[int, Agent] = {}

    def join(rank: int) -> None:
        agents[rank] = make_agent(f"together-{rank}", rank=rank + 20, world_size=None)

    for rank in range(3):
        join(rank)
    names = sorted(agent.name for agent in agents.values())
    for agent in agents.values():
        agent.world = tuple(names)
    return [agents[rank] for rank in range(3)]


def close_all(world: list[Agent], timeout_s: float = 30) -> list[BaseException | None]:
    outcomes: list[BaseException | None] = [None] * len(world)

    def one(place: int) -> None:
        try:
            close(world[place], timeout_s=timeout_s)
        except BaseException as error:
            outcomes[place] = error

    threads = [threading.Thread(target=one, args=(place,)) for place in range(len(world))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return outcomes


def test_wait_all_workers_dense(world: list[Agent], as_agent: Any) -> None:
    for agent in world:
        with as_agent(agent):
            for other in world:
                assert gm.rpc_sync(other.name, whoami) == other.name

    assert close_all(world) == [None] * 3
    assert all(agent.closed for agent in world)


def test_graceful_shutdown_with_uneven_workload(world: list[Agent], as_agent: Any) -> None:
    busy, *idle = world
    ended: list[float] = []

    def end(agent: Agent) -> None:
        close(agent, timeout_s=30)
        ended.append(time.monotonic())

    threads = [threading.Thread(target=end, args=(agent,)) for agent in idle]
    for thread in threads:
        thread.start()
    with as_agent(busy):
        futures = [gm.rpc_async(idle[n % 2].name, sleep, (0.02,)) for n in range(30)]
        assert [future.wait() for future in futures] == [0.02] * 30
        assert ended == []
    close(busy, timeout_s=30)
    for thread in threads:
        thread.join(30)

    assert len(ended) == 2


def test_shutdown_does_not_cut_a_chain_of_calls(world: list[Agent], as_agent: Any) -> None:
    names = [agent.name for agent in world]
    with as_agent(world[0]):
        gm.rpc_sync(names[1], chain, (names, 20))
    before = sum(agent.executor.served for agent in world)

    outcomes = close_all(world)

    assert outcomes == [None] * 3
    served = sum(a.executor.served - a.collectives.served for a in world)
    assert served >= 21, (before, served)


def test_wait_all_workers_timeout(world: list[Agent]) -> None:
    with pytest.raises(errors.DeadlineExceeded):
        close(world[0], timeout_s=0.3)

    assert world[0].closed


def test_shutdown_errors(world: list[Agent], as_agent: Any) -> None:
    with as_agent(world[0]):
        gm.rpc_async("worker-0", never, timeout_s=60)
    with pytest.raises(errors.DeadlineExceeded, match="1 calls have no answer yet"):
        close(world[0], timeout_s=0.5)

    assert world[0].closed


def test_shutdown_followed_by_rpc(make_agent: Callable[..., Agent], as_agent: Any) -> None:
    agent = make_agent("finished")
    close(agent)

    with as_agent(agent), pytest.raises(gm.rpc.RpcNotRunning):
        gm.rpc_sync("worker-0", add, (1, 1))


def test_local_shutdown_with_rpc(make_agent: Callable[..., Agent], as_agent: Any) -> None:
    agent = make_agent("abrupt")
    with as_agent(agent):
        assert gm.rpc_sync("worker-0", add, (1, 1)) == 2
        slow = gm.rpc_async("worker-0", sleep, (5.0,))
        later = gm.rpc_async("worker-0", never)
        later.add_done_callback(lambda done: None)

    begun = time.monotonic()
    close(agent, graceful=False)

    for future in (slow, later):
        with pytest.raises(errors.MeshError):
            future.wait(120)
    assert time.monotonic() - begun < 10


def test_nothing_of_an_agent_is_left(
    make_agent: Callable[..., Agent], own_threads: OwnThreads, eventually: Any
) -> None:
    agent = make_agent("thrifty")
    assert gm.rpc_sync("thrifty", add, (1, 1)) == 2
    close(agent)

    eventually(lambda: not own_threads.alive(), 20)


def test_nothing_of_an_agent_that_ends_at_once_is_left(
    make_node: Callable[..., Node],
    crash: Callable[[Node], None],
    own_threads: OwnThreads,
    eventually: Any,
) -> None:
    node = make_node("cut-short")
    crash(node)
    node.mesh.close()

    eventually(lambda: not own_threads.alive(), 20)


@pytest.fixture
def name() -> str:
    return f"doomed-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def doomed(address: str, eventually: Any, name: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker process of its own, started by command."""
    command = [sys.executable, "-m", "gradmesh", "worker", "--name", name]
    flags = [
        "--coordinator",
        address,
        "--import",
        "rpc_functions,rpc_async_functions",
        "--lifeline",
    ]
    process = subprocess.Popen([*command, *flags], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: name in {i.name for i in gm.rpc.get_worker_infos()}, 30)
        yield process
    finally:
        process.kill()
        process.wait(120)
        assert process.stdin is not None
        process.stdin.close()


def test_a_worker_that_dies_fails_its_calls_soon(
    doomed: subprocess.Popen[bytes], name: str
) -> None:
    assert gm.rpc_sync(name, whoami) == name
    running = gm.rpc_async(name, sleep, (60.0,), timeout_s=math.inf)
    deferred = gm.rpc_async(name, never, timeout_s=math.inf)
    with_callback = gm.rpc_async(name, never, timeout_s=math.inf).then(
        lambda done: done.exception()
    )
    rref = gm.remote(name, add, (1, 1))
    assert rref.to_here() == 2

    begun = time.monotonic()
    doomed.kill()

    for future in (running, deferred):
        with pytest.raises(errors.Unreachable):
            future.wait(120)
    assert isinstance(with_callback.wait(120), errors.Unreachable)
    assert time.monotonic() - begun < 20  # the call sleeps for 60 s
    with pytest.raises((errors.Unreachable, errors.WorkerNotFound, errors.DeadlineExceeded)):
        rref.to_here(timeout_s=3)


def test_a_worker_ends_in_order_on_sigterm(doomed: subprocess.Popen[bytes], name: str) -> None:
    assert gm.rpc_sync(name, add, (1, 2)) == 3

    doomed.terminate()

    assert doomed.wait(120) == 143

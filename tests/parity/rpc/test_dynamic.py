"""Workers that start together, that join later, and both."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rpc_functions import add, whoami

import gradmesh as gm
from gradmesh.protos import errors
from gradmesh.sdk.process.network import SecurityConfig
from gradmesh.sdk.rpc.agent import Agent
from gradmesh.sdk.rpc.directory import WorkerDirectory
from gradmesh.sdk.rpc.shutdown import close


def test_static_world(make_agent: Callable[..., Agent], as_agent: Any, own_mesh: str) -> None:
    agents: list[Agent] = []

    def join(rank: int) -> None:
        options = {"rank": rank, "world_size": 3, "coordinator": own_mesh}
        agents.append(make_agent(f"static-{rank}", **options))

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert {agent.world for agent in agents} == {("static-0", "static-1", "static-2")}
    for agent in agents:
        with as_agent(agent):
            assert [gm.rpc_sync(rank, whoami) for rank in range(3)] == list(agent.world)
    ending = [threading.Thread(target=close, args=(agent,)) for agent in agents]
    for thread in ending:
        thread.start()
    for thread in ending:
        thread.join(30)
    assert all(agent.closed for agent in agents)


def test_a_world_that_does_not_come_together(own_mesh: str) -> None:
    with pytest.raises(
        errors.DeadlineExceeded, match="timed out waiting for the workers of rank 1, 2"
    ):
        gm.rpc.init(
            "lonely",
            coordinator=own_mesh,
            rank=0,
            world_size=3,
            timeouts=gm.Timeouts(join_s=2),
            install=False,
        )


def test_missing_workers_are_named_when_the_deadline_ends_a_refresh(
    own_mesh: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, looks = WorkerDirectory.refresh, []

    def look_once(self: WorkerDirectory, deadline: Any) -> Any:
        looks.append(deadline)
        if len(looks) > 1:
            raise errors.DeadlineExceeded("GetStatus: no answer in time")
        return look(self, deadline)

    monkeypatch.setattr(WorkerDirectory, "refresh", look_once)
    with pytest.raises(
        errors.DeadlineExceeded, match="timed out waiting for the workers of rank 1, 2"
    ):
        gm.rpc.init("lonely", coordinator=own_mesh, rank=0, world_size=3, install=False)


def test_worlds_of_different_sizes(own_mesh: str, make_agent: Callable[..., Agent]) -> None:
    make_agent("one", rank=0, world_size=1, coordinator=own_mesh)

    with pytest.raises(errors.InvalidRequest, match="expects 2 workers, 'one' expects 1"):
        gm.rpc.init("two", coordinator=own_mesh, rank=1, world_size=2, install=False)


def test_world_size_one(own_mesh: str, make_agent: Callable[..., Agent], as_agent: Any) -> None:
    agent = make_agent("alone", rank=0, world_size=1, coordinator=own_mesh)
    with as_agent(agent):
        assert gm.rpc_sync("alone", add, (1, 1)) == 2
        assert gm.rpc_async(0, add, (1, 1)).wait() == 2
        assert gm.remote(0, add, (1, 1)).to_here() == 2
        gm.rpc.barrier()
    close(agent)


def test_dynamic_rpc_init_rpc_without_rank(make_agent: Callable[..., Agent], as_agent: Any) -> None:
    with as_agent(make_agent("unranked")):
        assert gm.rpc.get_worker_info().rank is None
        assert gm.rpc_sync("unranked", whoami) == "unranked"


def test_new_rank_can_communicate_with_existing(
    make_agent: Callable[..., Agent], as_agent: Any
) -> None:
    with as_agent(make_agent("newcomer", rank=50)):
        assert [gm.rpc_sync(rank, whoami) for rank in range(4)] == [
            f"worker-{rank}" for rank in range(4)
        ]


def test_existing_can_communicate_with_new_rank(make_agent: Callable[..., Agent]) -> None:
    make_agent("late", rank=51)

    assert gm.rpc_sync("worker-0", add, (1, 1)) == 2
    assert gm.rpc_sync(51, whoami) == "late"
    assert gm.rpc_sync("worker-1", "rpc_functions.nested_sum", ("late", "worker-1", 3)) == 3


def test_dynamic_and_static_together(
    own_mesh: str, make_agent: Callable[..., Agent], as_agent: Any
) -> None:
    make_agent("fixed", rank=0, world_size=1, coordinator=own_mesh)
    with as_agent(make_agent("free", coordinator=own_mesh)):
        assert gm.rpc_sync("fixed", whoami) == "fixed"


def test_a_worker_that_moved_is_found_again(
    make_agent: Callable[..., Agent], eventually: Any
) -> None:
    first = make_agent("mover")
    assert gm.rpc_sync("mover", whoami) == "mover"
    close(first)
    make_agent("mover")

    def found() -> bool:
        try:
            return bool(gm.rpc_sync("mover", whoami, timeout_s=5) == "mover")
        except errors.MeshError:
            return False

    eventually(found)


def test_workers_with_a_token(
    make_cluster: Callable[..., Any],
    make_agent: Callable[..., Agent],
    as_agent: Any,
    tmp_path: Path,
) -> None:
    token = tmp_path / "token"
    token.write_text("a-random-token\n")
    token.chmod(0o600)
    security = SecurityConfig(token_file=token)
    address = make_cluster(parameter_servers=1, start_servers=False, security=security).address
    make_agent("guarded", coordinator=address, security=security)

    with as_agent(make_agent("admitted", coordinator=address, security=security)):
        assert gm.rpc_sync("guarded", add, (1, 1)) == 2
        assert gm.remote("guarded", add, (1, 1)).to_here() == 2
    with pytest.raises(errors.Unauthenticated):
        gm.rpc.init("stranger", coordinator=address, install=False, timeouts=gm.Timeouts(join_s=5))

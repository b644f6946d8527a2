"""The lifetime of references: forks, deletion of values, cleanup after dead workers."""

import gc
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from rpc_functions import add, confirmed_all, drop, echo, fetch, fetch_held, hold, info, sleep

import gradmesh as gm
from gradmesh.protos import errors
from gradmesh.sdk.node.node import Node
from gradmesh.sdk.rpc.agent import Agent
from gradmesh.sdk.rpc.shutdown import close

QUIET = ("num_owner_rrefs", "num_forks", "num_pending_users", "num_pending_futures",
         "num_pending_children")  # fmt: skip


@pytest.fixture
def name() -> str:
    return uuid.uuid4().hex


def figures(worker: str) -> dict[str, int]:
    counters: dict[str, int] = gm.rpc_sync(worker, info)
    return counters


def test_rref_context_debug_info(
    make_agent: Callable[..., Agent], as_agent: Any, name: str, eventually: Any
) -> None:
    owner = make_agent("debugged")
    with as_agent(owner):
        rref = gm.RRef([1])
        assert owner.debug_info()["num_owner_rrefs"] == 0

        gm.rpc_sync("worker-1", hold, (name, rref))
        assert owner.debug_info()["num_owner_rrefs"] == 1
        assert owner.debug_info()["num_forks"] == 1

        gm.rpc_sync("worker-1", drop, (name,))
        eventually(lambda: owner.debug_info()["num_owner_rrefs"] == 0)
        del rref
    two = [gm.remote("debugged", echo, (n,)) for n in range(2)]
    assert [one.to_here() for one in two] == [0, 1]
    assert owner.debug_info()["num_owner_rrefs"] == 2
    del two
    gc.collect()
    eventually(lambda: all(owner.debug_info()[key] == 0 for key in QUIET))


def test_a_value_is_kept_until_its_last_reference_is_dropped(
    make_agent: Callable[..., Agent], name: str, eventually: Any
) -> None:
    owner = make_agent("keeper")
    rref = gm.remote("keeper", echo, (5,))
    gm.rpc_sync("worker-0", hold, (name, rref))
    del rref
    gc.collect()

    eventually(lambda: owner.debug_info()["num_forks"] == 1)
    assert gm.rpc_sync("worker-0", fetch_held, (name,)) == 5
    gm.rpc_sync("worker-0", drop, (name,))
    eventually(lambda: owner.debug_info()["num_owner_rrefs"] == 0)


def test_references_in_lists_and_maps_are_confirmed_before_the_function_runs() -> None:
    rrefs = [gm.remote(f"worker-{n}", add, (n, 1)) for n in range(3)]

    assert gm.rpc_sync("worker-3", confirmed_all, ({"list": rrefs},)) == [True] * 3


def test_a_reference_dropped_at_once_is_still_created_and_deleted(
    make_agent: Callable[..., Agent], eventually: Any
) -> None:
    owner = make_agent("brief")
    for n in range(50):
        gm.remote("brief", echo, (n,))
    gc.collect()

    eventually(lambda: owner.executor.served >= 50)
    eventually(lambda: all(owner.debug_info()[key] == 0 for key in QUIET))


def test_fetches_overtake_creations(make_agent: Callable[..., Agent]) -> None:
    make_agent("early")
    rrefs = [gm.remote("early", sleep, (0.2,)) for _ in range(10)]

    assert [rref.to_here() for rref in rrefs] == [0.2] * 10


def test_a_dead_users_references_are_collected(
    make_agent: Callable[..., Agent],
    make_node: Callable[..., Node],
    crash: Callable[[Node], None],
    as_agent: Any,
    eventually: Any,
) -> None:
    owner, user = make_agent("left-owner"), make_node("left-user")
    with as_agent(user.agent):
        kept = [gm.remote("left-owner", echo, (n,)) for n in range(3)]
        assert [rref.to_here() for rref in kept] == [0, 1, 2]
    assert owner.debug_info()["num_owner_rrefs"] == 3
    owner.collector.collect()

    crash(user)
    user.mesh.connection._lease.close()

    eventually(lambda: owner.debug_info()["num_owner_rrefs"] == 0, 30)


def test_a_restarted_users_references_are_collected(
    make_agent: Callable[..., Agent],
    make_node: Callable[..., Node],
    crash: Callable[[Node], None],
    as_agent: Any,
    eventually: Any,
) -> None:
    owner, user = make_agent("kept-owner"), make_node("comes-back")
    with as_agent(user.agent):
        kept = gm.remote("kept-owner", echo, (1,))
        assert kept.to_here() == 1
    owner.collector.collect()
    crash(user)
    again = make_agent("comes-back", replace=True)
    user.mesh.connection._lease.lost = True

    eventually(lambda: owner.debug_info()["num_owner_rrefs"] == 0, 30)
    with as_agent(again):
        fresh = gm.remote("kept-owner", echo, (2,))
        assert fresh.to_here() == 2


def test_rref_leak(make_agent: Callable[..., Agent], name: str) -> None:
    leaky = make_agent("leaky", strict_refs=True)
    gm.rpc_sync("worker-0", hold, (name, gm.rpc_sync("leaky", "gradmesh.rpc-test.make", (1,))))

    with pytest.raises(gm.rpc.RefLeak, match="leaky ends with 1 values that others still refer to"):
        close(leaky, timeout_s=5)
    assert leaky.closed
    gm.rpc_sync("worker-0", drop, (name,))


def test_ignore_rref_leak(
    make_agent: Callable[..., Agent], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    leaky = make_agent("forgiven")
    gm.rpc_sync("worker-0", hold, (name, gm.rpc_sync("forgiven", "gradmesh.rpc-test.make", (1,))))

    close(leaky, timeout_s=5)

    assert "references leaked" in caplog.text
    gm.rpc_sync("worker-0", drop, (name,))


def test_non_garbage_collected_user_rref_due_to_local_circular_dependency(
    make_agent: Callable[..., Agent], as_agent: Any, eventually: Any
) -> None:
    owner, user = make_agent("circled"), make_agent("circling")
    with as_agent(user):
        ring: list[Any] = [gm.remote("circled", echo, (1,))]
        ring.append(ring)
        assert ring[0].to_here() == 1
        del ring
    close(user)

    eventually(lambda: owner.debug_info()["num_owner_rrefs"] == 0)


def test_use_rref_after_shutdown(make_agent: Callable[..., Agent], as_agent: Any) -> None:
    user = make_agent("gone")
    with as_agent(user):
        rref = gm.remote("worker-0", echo, (1,))
        mine = gm.RRef(1)
        assert rref.to_here() == 1
    close(user)

    for use in (rref.to_here, mine.to_here, rref.rpc_sync):
        with pytest.raises((errors.RefNotFound, RuntimeError)):
            use().get()
    with pytest.raises(errors.RefNotFound, match="rpc was shut down"):
        gm.rpc_sync("worker-0", fetch, (rref,))


@gm.rpc.register(name="gradmesh.rpc-test.make")
def make(value: Any) -> Any:
    return gm.RRef(value)


def test_nothing_grows(make_agent: Callable[..., Agent], eventually: Any) -> None:
    owner = make_agent("steady")
    for n in range(300):
        rref = gm.remote("steady", echo, (n,))
        assert gm.rpc_sync("worker-1", fetch, (rref,)) == n
        assert gm.rpc_sync("steady", echo, (gm.RRef(n),)).to_here() == n
    del rref
    gc.collect()

    mine = gm.rpc.debug_info
    eventually(lambda: all(owner.debug_info()[key] == 0 for key in QUIET))
    eventually(lambda: all(mine()[key] == 0 for key in (*QUIET, "num_confirmed_users")))
    assert mine()["agent.client_active_calls"] == 0
    assert len(owner.rrefs.owners._awaited) == 0

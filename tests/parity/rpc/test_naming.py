"""Names, ranks and options of workers, and how a process becomes one."""

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from rpc_functions import echo, owner_info, sleep, whoami

import gradmesh as gm
from gradmesh.protos import errors
from gradmesh.sdk.rpc import current
from gradmesh.sdk.rpc.agent import Agent
from gradmesh.sdk.rpc.shutdown import close

HURRY = gm.Timeouts(join_s=3)


def test_worker_id() -> None:
    assert gm.rpc.get_worker_info().name == "driver"
    assert gm.rpc.get_worker_info("worker-2").rank == 2
    with pytest.raises(errors.WorkerNotFound, match="no worker 'nobody' in this mesh; there are"):
        gm.rpc.get_worker_info("nobody")


def test_get_worker_infos() -> None:
    # The session waits for its workers only; on a busy machine the server may join after them.
    gm.rpc.wait_for_workers("parameter-server-0")

    ranks = {info.name: info.rank for info in gm.rpc.get_worker_infos()}

    assert {name: rank for name, rank in ranks.items() if name.startswith("worker-")} == {
        f"worker-{rank}": rank for rank in range(4)
    }
    assert ranks["parameter-server-0"] is None


@pytest.mark.parametrize("name", ["abc*", " ", "", "a" * 300, "a b", "ü"])
def test_invalid_names(address: str, name: str) -> None:
    with pytest.raises(errors.InvalidRequest, match="is not a name for a worker"):
        gm.rpc.init(name, coordinator=address, install=False)


def test_worker_info_pickle() -> None:
    info = gm.rpc.get_worker_info("worker-1")

    assert gm.rpc_sync("worker-3", echo, (info,)) == info
    assert gm.rpc_sync(info, whoami) == "worker-1"


def test_duplicate_name(address: str, make_agent: Callable[..., Agent]) -> None:
    make_agent("twin")

    with pytest.raises(errors.NameTaken, match="'twin' is held by the process at"):
        gm.rpc.init("twin", coordinator=address, install=False, timeouts=HURRY)
    with pytest.raises(errors.NameTaken):
        gm.rpc.init("worker-0", coordinator=address, install=False, timeouts=HURRY)


def test_duplicate_rank(address: str) -> None:
    with pytest.raises(errors.InvalidRequest, match="both have rank 2"):
        gm.rpc.init("other", coordinator=address, rank=2, install=False)

    assert "other" not in {info.name for info in gm.rpc.get_worker_infos()}


def test_reinit(address: str) -> None:
    with pytest.raises(gm.rpc.RpcNotRunning, match="rpc runs here already, as 'driver'"):
        gm.rpc.init("second", coordinator=address)


def test_init_again_after_shutdown(make_agent: Callable[..., Agent], as_agent: Any) -> None:
    for _ in range(2):
        agent = make_agent("phoenix")
        with as_agent(agent):
            assert gm.rpc_sync("phoenix", whoami) == "phoenix"
        close(agent)


@pytest.mark.parametrize("timeout", [timedelta(seconds=1), "1", -3, 0, math.nan, True], ids=str)
def test_wrong_types(address: str, timeout: Any) -> None:
    with pytest.raises(errors.InvalidRequest, match="call_s must be a number of seconds above 0"):
        gm.rpc.init(
            "typed", coordinator=address, timeouts=gm.Timeouts(call_s=timeout), install=False
        )
    with pytest.raises(errors.InvalidRequest, match="timeout_s must be a number of seconds"):
        gm.rpc_sync("worker-0", echo, (1,), timeout_s=timeout)
    with pytest.raises(errors.InvalidRequest):
        gm.rpc.set_timeout(timeout)


@pytest.mark.parametrize("options", [{"rank": -1}, {"world_size": 2}, {"rank": 2, "world_size": 2}])
def test_invalid_ranks_are_refused(address: str, options: dict[str, int]) -> None:
    with pytest.raises(errors.InvalidRequest):
        gm.rpc.init("odd", coordinator=address, install=False, **options)  # type: ignore[arg-type]


def test_set_and_get_num_worker_threads(make_agent: Callable[..., Agent], as_agent: Any) -> None:
    agent = make_agent("narrow", limits=gm.Limits(threads=2))
    with as_agent(agent):
        futures = [gm.rpc_async("narrow", sleep, (0.01,)) for _ in range(20)]

        assert [future.wait() for future in futures] == [0.01] * 20


def test_set_default_timeout(make_agent: Callable[..., Agent], as_agent: Any) -> None:
    with as_agent(make_agent("quick", timeouts=gm.Timeouts(call_s=3.5))):
        assert gm.rpc.get_timeout() == 3.5
        gm.rpc.set_timeout(math.inf)
        assert gm.rpc.get_timeout() == math.inf


def test_pg_init_no_rpc_init(driver: Agent) -> None:
    current.uninstall(driver)
    token = current.here.set(None)
    try:
        with pytest.raises(gm.rpc.RpcNotRunning, match=r"call gm\.rpc\.init first"):
            gm.RRef(1)
        with pytest.raises(RuntimeError):
            gm.rpc_sync("worker-0", whoami)
    finally:
        current.here.reset(token)
        current.install(driver)


def test_owner_equality() -> None:
    a, b = gm.remote("worker-1", echo, (1,)), gm.remote("worker-1", echo, (2,))
    other = gm.remote("worker-2", echo, (3,))

    assert a.owner() == b.owner()
    assert hash(a.owner()) == hash(b.owner())
    assert a.owner() != other.owner()
    assert gm.rpc_sync("worker-2", owner_info, (a,)) == a.owner()
    assert len({a.owner(): 1, b.owner(): 2, other.owner(): 3}) == 2

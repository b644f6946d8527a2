"""Asynchronous functions, which block no thread."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rpc_async_functions import (
    Averager,
    add_chained,
    add_later,
    add_multi_chained,
    add_multi_fanout,
    add_nested,
    fail_later,
    never,
    not_a_future,
    on_release,
    own_future,
    raise_later,
    release,
    train,
)
from rpc_functions import Point, info, slow_point

import gradmesh as gm
from gradmesh.sdk.process.network import TransportConfig
from gradmesh.sdk.rpc.agent import Agent
from gradmesh.sdk.rpc.current import current_agent

WAYS = ["sync", "async", "remote"]


def ask(way: str, to: str, function: Any, args: tuple[Any, ...]) -> Any:
    if way == "sync":
        return gm.rpc_sync(to, function, args)
    if way == "async":
        return gm.rpc_async(to, function, args).wait()
    return gm.remote(to, function, args).to_here()


@pytest.mark.parametrize("way", WAYS)
def test_async_function_raise(way: str) -> None:
    with pytest.raises(RuntimeError, match="expected error"):
        ask(way, "worker-0", raise_later, ())
    with pytest.raises(ValueError, match="expected error"):
        ask(way, "worker-0", fail_later, ())


@pytest.mark.parametrize("way", WAYS)
def test_async_function_wrong_return_type(way: str) -> None:
    with pytest.raises(RuntimeError, match="must return a Future, not a int"):
        ask(way, "worker-0", not_a_future, ())


def test_async_function_wrong_decorator_order() -> None:
    with pytest.raises(TypeError, match="put it below"):
        gm.rpc.async_execution(classmethod(lambda cls: None))  # type: ignore[type-var]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("to", ["worker-0", "driver"])
def test_async_function_simple(way: str, to: str) -> None:
    assert ask(way, to, add_later, ("worker-1", 1, 2)) == 3
    assert np.array_equal(ask(way, to, add_later, ("worker-1", np.ones(2), 2)), [3, 3])


@pytest.mark.parametrize("way", WAYS)
def test_async_function_with_future_ctor(way: str) -> None:
    assert ask(way, "worker-0", own_future, (0.05, {"a": [1]})) == {"a": [1]}
    assert ask(way, "worker-0", own_future, (0.0, 5)) == 5


@pytest.mark.parametrize("way", WAYS)
def test_async_function_chained(way: str) -> None:
    assert ask(way, "worker-0", add_chained, ("worker-1", 1, 2, 4)) == 7


@pytest.mark.parametrize("way", WAYS)
def test_async_function_nested(way: str) -> None:
    assert ask(way, "worker-0", add_nested, ("worker-1", 1, 2, 4)) == 7


@pytest.mark.parametrize("way", WAYS)
def test_async_static_method(way: str) -> None:
    assert ask(way, "worker-0", Point.static_later, ("worker-1", 4)) == 5


@pytest.mark.parametrize("way", WAYS)
def test_async_class_method(way: str) -> None:
    assert ask(way, "worker-0", Point.class_later, ("worker-1", 4)) == 5


def test_async_class_rref_proxy() -> None:
    rref = gm.remote("worker-0", Point, (4,))

    assert rref.rpc_sync().later(3) == 7
    assert rref.rpc_async().later(3).wait() == 7
    assert rref.remote().later(3).to_here() == 7


@pytest.mark.parametrize("way", WAYS)
def test_async_function_multi_chained(way: str) -> None:
    assert ask(way, "worker-0", add_multi_chained, ("worker-1", 1, 20, 3)) == 61


@pytest.mark.parametrize("way", WAYS)
def test_async_function_multi_fanout(way: str) -> None:
    assert ask(way, "worker-0", add_multi_fanout, ("worker-1", 1, 20, 3)) == 61


def test_answers_that_wait_hold_no_thread(eventually: Any) -> None:
    futures = [gm.rpc_async("worker-2", on_release, (n,)) for n in range(200)]
    eventually(lambda: gm.rpc_sync("worker-2", info)["agent.server_active_async_calls"] >= 200)
    waiting = gm.rpc_sync("worker-2", info)
    gm.rpc_sync("worker-2", release)

    assert waiting["agent.thread_pool_size"] < 40
    assert [future.wait() for future in futures] == list(range(200))


def test_calls_of_an_object_that_is_being_made_hold_no_thread(
    make_agent: Callable[..., Agent], as_agent: Any
) -> None:
    make_agent("busy", limits=gm.Limits(threads=2), transport=TransportConfig(lane="unary"))
    with as_agent(make_agent("asker", transport=TransportConfig(lane="unary"))):
        rref = gm.remote("busy", slow_point, (0.5,))
        caller = current_agent().caller
        futures = [caller.call("busy", "move", (1,), {}, None, rref) for _ in range(60)]

        assert sorted(future.wait() for future in futures) == list(range(8, 68))


def test_an_answer_that_never_comes_ends_by_its_deadline() -> None:
    with pytest.raises(TimeoutError, match="no answer in time"):
        gm.rpc_sync("worker-2", never, timeout_s=0.3)


@pytest.mark.parametrize("sparse", [False, True])
def test_my_parameter_server(sparse: bool) -> None:
    """test_my_parameter_server, test_my_parameter_server_sparse."""
    server = gm.remote("worker-3", Averager, (3,))

    trained = [
        gm.rpc_async(f"worker-{rank}", train, (server, 10, rank, sparse)) for rank in range(3)
    ]

    assert [future.wait() for future in trained] == [True] * 3

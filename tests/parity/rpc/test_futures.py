"""Futures of calls: callbacks, collections, waiting for all."""

import contextvars
import pickle
import threading
from typing import Any

import pytest
from rpc_async_functions import callback_in_call, return_future
from rpc_functions import add, raise_value, sleep

import gradmesh as gm
from gradmesh.protos import errors


def test_wait_all() -> None:
    with gm.rpc.call_group() as futures:
        gm.rpc_async("worker-0", add, (1, 1))

    assert len(futures) == 1
    assert futures[0].done()
    assert futures[0].wait() == 2


def test_wait_all_multiple_call() -> None:
    with gm.rpc.call_group() as futures:
        for n in range(20):
            gm.rpc_async(f"worker-{n % 4}", add, (n, 1))
            gm.rpc_sync("worker-0", add, (1, 1))
            gm.remote("worker-0", add, (1, 1))

    assert sum(future.wait() or 0 for future in futures) == sum(range(1, 21))


def test_wait_all_timeout() -> None:
    def block() -> None:
        with gm.rpc.call_group():
            gm.rpc_async("worker-0", sleep, (2.0,), timeout_s=0.1)

    with pytest.raises(errors.DeadlineExceeded):
        block()


def test_wait_all_raise_in_user_func() -> None:
    def block() -> None:
        with gm.rpc.call_group():
            gm.rpc_async("worker-0", raise_value)

    with pytest.raises(ValueError, match="expected error"):
        block()


def test_wait_all_raise_in_body() -> None:
    futures: list[Any] = []

    def block() -> None:
        with gm.rpc.call_group() as collected:
            futures.extend([gm.rpc_async("worker-0", sleep, (0.2,))])
            assert collected == futures
            raise LookupError("from the block")

    with pytest.raises(LookupError, match="from the block"):
        block()
    assert futures[0].done()


def test_wait_all_with_partial_exception() -> None:
    futures = [gm.rpc_async("worker-0", add, (1, 1)), gm.rpc_async("worker-1", raise_value)]

    with pytest.raises(ValueError, match="expected error"):
        gm.futures.wait_all(futures)
    assert gm.futures.wait_all(futures[:1]) == [2]


def test_wait_all_exit_early() -> None:
    with pytest.raises(errors.DeadlineExceeded, match="1 of 1 calls were not done within"):
        gm.futures.wait_all([gm.rpc_async("worker-0", sleep, (2.0,))], timeout_s=0.05)


def test_callback_simple() -> None:
    followed = gm.rpc_async("worker-0", add, (1, 1)).then(lambda done: done.wait() + 1)

    assert followed.wait() == 3


def test_callback_multi() -> None:
    future = gm.rpc_async("worker-0", add, (1, 1))

    followed = [future.then(lambda done, n=n: done.wait() + n) for n in range(20)]

    assert [one.wait() for one in followed] == list(range(2, 22))


def test_callback_chain() -> None:
    future = gm.rpc_async("worker-0", add, (1, 0))
    for _ in range(20):
        future = future.then(lambda done: done.wait() + 1)

    assert future.wait() == 21


def test_callback_in_rpc() -> None:
    assert gm.rpc_sync("worker-0", callback_in_call, ("worker-1", 3)) == 7


def test_callback_with_ret_of_another_call() -> None:
    followed = gm.rpc_async("worker-0", add, (1, 1)).then(
        lambda done: gm.rpc_sync("worker-1", add, (done.wait(), 5))
    )

    assert followed.wait() == 7


def test_callback_with_error() -> None:
    def fail(done: Any) -> None:
        done.wait()

    followed = gm.rpc_async("worker-0", raise_value).then(fail)

    with pytest.raises(ValueError, match="expected error"):
        followed.wait()


def test_callback_none() -> None:
    future = gm.rpc_async("worker-0", add, (1, 1))

    with pytest.raises(TypeError, match="must be a function, not NoneType"):
        future.then(None)  # type: ignore[arg-type]
    assert future.wait() == 2


def test_callback_wrong_arg_num() -> None:
    followed = gm.rpc_async("worker-0", add, (1, 1)).then(lambda: 1)  # type: ignore[arg-type,misc]

    with pytest.raises(TypeError, match="positional argument"):
        followed.wait()


def test_callback_wrong_arg_type() -> None:
    followed = gm.rpc_async("worker-0", add, (1, 1)).then(lambda done: done + 1)  # type: ignore[operator]

    with pytest.raises(TypeError, match="unsupported operand"):
        followed.wait()


def test_add_done_callback() -> None:
    called = threading.Event()
    future = gm.rpc_async("worker-0", add, (1, 1))

    future.add_done_callback(lambda done: called.set())

    assert called.wait(120)
    assert future.wait() == 2


def test_callbacks_run_in_the_contextvars_of_their_registration() -> None:
    var = contextvars.ContextVar("var", default="none")
    var.set("mine")

    followed = gm.rpc_async("worker-0", sleep, (0.05,)).then(lambda done: var.get())

    assert followed.wait() == "mine"


def test_mark_future_twice() -> None:
    future: gm.Future[int] = gm.Future()
    future.set_result(1)

    with pytest.raises(RuntimeError, match="has a result already"):
        future.set_result(2)
    with pytest.raises(RuntimeError, match="gets one from its call"):
        gm.rpc_async("worker-0", add, (1, 1)).set_result(3)
    assert future.value() == 1


def test_pickle_future() -> None:
    with pytest.raises(TypeError):
        pickle.dumps(gm.Future())


def test_future_done() -> None:
    future = gm.rpc_async("worker-0", add, (1, 1))

    future.wait()

    assert future.done()


def test_future_done_exception(eventually: Any) -> None:
    future = gm.rpc_async("worker-0", raise_value)

    eventually(future.done)

    with pytest.raises(ValueError, match="expected error"):
        future.value()


def test_future_is_done_without_a_waiting_caller(eventually: Any) -> None:
    futures = [gm.rpc_async("worker-0", sleep, (0.1,)) for _ in range(20)]

    eventually(lambda: all(future.done() for future in futures))


def test_future_nested_callback() -> None:
    outer = gm.rpc_async("worker-0", add, (1, 1)).then(
        lambda done: gm.rpc_async("worker-1", add, (done.wait(), 1)).then(lambda d: d.wait() * 10)
    )

    assert outer.wait().wait() == 30


def test_a_slow_future_does_not_hold_up_the_callbacks_of_others() -> None:
    slow = gm.rpc_async("worker-0", sleep, (2.0,))
    slow.add_done_callback(lambda done: None)
    quick = threading.Event()

    gm.rpc_async("worker-1", add, (1, 1)).add_done_callback(lambda done: quick.set())

    assert quick.wait(1.5)
    slow.wait()


def test_return_future() -> None:
    with pytest.raises(errors.InvalidRequest, match="a Future cannot be sent"):
        gm.rpc_sync("worker-0", return_future)


def test_calls_with_dropped_futures_are_still_made(eventually: Any) -> None:
    for n in range(20):
        gm.rpc_async("worker-0", add, (n, 1))

    eventually(lambda: gm.rpc.debug_info()["agent.client_active_calls"] == 0)

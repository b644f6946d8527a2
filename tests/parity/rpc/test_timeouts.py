"""Deadlines: the default, per call, none; of calls, references and proxies."""

import contextlib
import gc
import math
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from rpc_async_functions import own_future
from rpc_functions import Point, add, sleep, slow_point

import gradmesh as gm
from gradmesh.protos import errors
from gradmesh.sdk.rpc.agent import Agent

LONG = 3.0
SHORT = 0.1


@pytest.fixture(autouse=True)
def default() -> Iterator[None]:
    before = gm.rpc.get_timeout()
    yield
    gm.rpc.set_timeout(before)


def test_default_timeout_used() -> None:
    running = gm.rpc_async("worker-0", sleep, (0.6,))
    gm.rpc.set_timeout(0.2)

    with pytest.raises(TimeoutError, match="no answer in time"):
        gm.rpc_sync("worker-0", sleep, (LONG,))
    assert running.wait() == 0.6
    gm.rpc.set_timeout(math.inf)
    assert gm.rpc_sync("worker-0", sleep, (0.3,)) == 0.3


def test_rpc_timeouts() -> None:
    with pytest.raises(errors.DeadlineExceeded):
        gm.rpc_sync("worker-0", sleep, (LONG,), timeout_s=SHORT)
    with pytest.raises(errors.DeadlineExceeded):
        gm.rpc_async("worker-0", sleep, (LONG,), timeout_s=SHORT).wait()
    gm.rpc.set_timeout(SHORT)
    assert gm.rpc_sync("worker-0", sleep, (0.3,), timeout_s=20) == 0.3
    assert gm.rpc_sync("worker-0", sleep, (0.3,), timeout_s=math.inf) == 0.3
    with pytest.raises(errors.DeadlineExceeded):
        gm.rpc_sync("worker-0", sleep, (LONG,), timeout_s=None)


def test_rpc_timeouts_of_answers_that_come_later() -> None:
    with pytest.raises(errors.DeadlineExceeded, match="own_future on worker-0"):
        gm.rpc_sync("worker-0", own_future, (LONG, 1), timeout_s=SHORT)
    errors_seen: list[Any] = []
    future = gm.rpc_async("worker-0", own_future, (LONG, 1), timeout_s=SHORT)
    followed = future.then(lambda done: errors_seen.append(done.exception()))
    followed.wait(120)
    assert isinstance(errors_seen[0], errors.DeadlineExceeded)


def test_rref_timeout(eventually: Any) -> None:
    rref = gm.remote("worker-0", slow_point, (2.0,), timeout_s=0.01)
    assert rref._used is not None
    eventually(rref._used.confirmed.done)

    assert not rref.confirmed_by_owner()
    for _ in range(2):
        with pytest.raises(errors.RefNotFound, match="creation failed, or may have"):
            rref.to_here()
    with pytest.raises(errors.RefNotFound, match="creation failed"):
        gm.rpc_sync("worker-1", add, (rref, rref))


def test_a_reference_whose_creation_failed_goes_with_its_last_user(eventually: Any) -> None:
    def use() -> weakref.ref[Any]:
        rref = gm.remote("worker-0", slow_point, (0.5,), timeout_s=0.05)
        with contextlib.suppress(errors.MeshError):
            rref.to_here(timeout_s=1)
        return weakref.ref(rref)

    seen = use()

    def is_gone() -> bool:
        gc.collect()  # the error and the frames that it came through
        return seen() is None

    eventually(is_gone)


def test_results_of_calls_are_not_kept(driver: Agent, eventually: Any) -> None:
    def known() -> list[Any]:
        return list(driver.caller._reaper._calls["worker-0"])

    # Calls of other tests may live on in the errors that pytest keeps of them.
    before = {id(call) for call in known()}
    own: list[Any] = []
    for _ in range(3):
        gm.rpc_async("worker-0", add, (1, 1)).wait()
        own += [call for call in known() if id(call) not in before]
    assert own

    def are_gone() -> bool:
        gc.collect()
        return all(call() is None for call in own)

    eventually(are_gone)


def test_rref_to_here_timeout() -> None:
    rref = gm.remote("worker-0", sleep, (2.0,))

    with pytest.raises(errors.DeadlineExceeded):
        rref.to_here(timeout_s=0.05)
    assert rref.to_here() == 2.0


@pytest.mark.parametrize("way", ["rpc_sync", "rpc_async", "remote"])
def test_rref_get_type_timeout(way: str) -> None:
    rref = gm.remote("worker-0", slow_point, (2.0,))

    def use() -> None:
        getattr(rref, way)(timeout_s=0.05).get().wait()

    with pytest.raises(errors.DeadlineExceeded):
        use()
    assert rref.rpc_sync().get() == 7


def test_rref_proxy_timeout() -> None:
    rref = gm.remote("worker-0", Point, (3,))
    rref.remote_type().wait()

    with pytest.raises(errors.DeadlineExceeded):
        rref.rpc_sync(timeout_s=SHORT).slow(LONG)
    with pytest.raises(errors.DeadlineExceeded):
        rref.rpc_async(timeout_s=SHORT).slow(LONG).wait()
    late = rref.remote(timeout_s=SHORT).slow(LONG)
    with pytest.raises((errors.DeadlineExceeded, errors.RefNotFound)):
        late.to_here(timeout_s=0.3)
    assert rref.rpc_sync().get() == 3


def test_a_late_call_does_not_hold_up_the_next() -> None:
    begun = time.monotonic()
    with pytest.raises(errors.DeadlineExceeded):
        gm.rpc_sync("worker-0", sleep, (15,), timeout_s=SHORT)

    assert gm.rpc_sync("worker-0", add, (1, 2)) == 3
    assert time.monotonic() - begun < 15

"""References: created locally and remotely, forwarded, fetched, used through proxies."""

import weakref
from typing import Any

import numpy as np
import pytest
from rpc_functions import (
    Point,
    add,
    describe,
    echo,
    fetch,
    fetch_sum,
    forward_chain,
    local_value,
    make_list,
    make_remote,
    make_rref,
    raise_value,
    slow_point,
)

import gradmesh as gm
from gradmesh.protos import errors

WORKERS = [f"worker-{rank}" for rank in range(4)]


def test_builtin_remote_ret() -> None:
    rref = gm.remote("worker-0", add, (np.ones(2), 1))

    assert not rref.is_owner()
    assert rref.owner_name() == "worker-0"
    assert rref.to_here().tolist() == [2, 2]


def test_builtin_remote_self() -> None:
    rref = gm.remote("driver", add, (np.ones(2), 1))

    assert rref.is_owner()
    assert rref.to_here().tolist() == [2, 2]
    assert rref.local_value() is rref.to_here()


def test_multi_builtin_remote_ret() -> None:
    rrefs = [gm.remote(f"worker-{n % 4}", add, (n, 1)) for n in range(10)]

    assert [rref.to_here() for rref in rrefs] == list(range(1, 11))


def test_py_rref_args() -> None:
    a, b = gm.remote("worker-0", add, (1, 1)), gm.remote("worker-0", add, (2, 2))

    assert gm.remote("worker-0", fetch_sum, (a, b)).to_here() == 6


def test_py_rref_args_user_share() -> None:
    a, b = gm.remote("worker-0", add, (1, 1)), gm.remote("worker-0", add, (2, 2))

    assert gm.remote("worker-1", fetch_sum, (a, b)).to_here() == 6


def test_py_rpc_rref_args() -> None:
    a, b = gm.remote("worker-0", add, (1, 1)), gm.remote("worker-2", add, (2, 2))

    assert gm.rpc_sync("worker-1", fetch_sum, (a, b)) == 6
    assert gm.rpc_sync("worker-1", fetch_sum, (), {"a": a, "b": a}) == 4


def test_remote_same_worker() -> None:
    a = gm.remote("worker-0", add, (1, 1))
    b = gm.remote("worker-0", fetch_sum, (a, a))

    assert b.to_here() == 4


def test_nested_remote() -> None:
    inner = gm.rpc_sync("worker-0", make_remote, ("worker-1", 1, 2))

    assert inner.owner_name() == "worker-1"
    assert inner.to_here() == 3


@pytest.mark.parametrize("count", [2, 20])
def test_nested_rref_stress(count: int) -> None:
    rref = gm.remote("worker-0", make_list, ("worker-1", count))

    inner = rref.to_here()

    assert [one.to_here() for one in inner] == list(range(1, count + 1))
    assert {one.owner_name() for one in inner} == {"worker-1"}
    assert [one.to_here() for one in rref.to_here()] == list(range(1, count + 1))


def test_rpc_return_rref() -> None:
    for owner in ("worker-1", "driver", "worker-0"):
        assert gm.rpc_sync("worker-0", make_remote, (owner, 4, 5)).to_here() == 9


def test_rref_forward_chain() -> None:
    rref = gm.remote("worker-0", add, (1, 1))

    assert gm.rpc_sync("worker-1", forward_chain, (WORKERS, rref, 8)) == 2


@pytest.mark.parametrize("to", ["driver", "worker-1"])
def test_self_remote_rref_as_argument(to: str) -> None:
    rref = gm.remote("driver", add, (1, 2))

    assert gm.rpc_sync(to, fetch, (rref,)) == 3
    assert gm.rpc_async(to, fetch, (rref,)).wait() == 3
    assert gm.remote(to, fetch, (rref,)).to_here() == 3


def test_local_rref_no_fork(eventually: Any) -> None:
    rref = gm.RRef(35)

    assert rref.local_value() == rref.to_here() == 35
    # Those of other tests are deleted in the background.
    eventually(lambda: gm.rpc.debug_info()["num_owner_rrefs"] == 0)


def test_pass_local_rrefs() -> None:
    rref = gm.RRef({"a": 40})

    assert gm.rpc_sync("worker-0", fetch, (rref,)) == {"a": 40}
    assert gm.rpc_async("worker-1", fetch, (rref,)).wait() == {"a": 40}
    assert gm.remote("worker-2", fetch, (rref,)).to_here() == {"a": 40}
    assert gm.rpc_sync("driver", local_value, (rref,)) == {"a": 40}


def test_return_local_rrefs() -> None:
    rrefs = [gm.rpc_sync("worker-0", make_rref, (n,)) for n in (11, 12, 13)]

    assert [rref.to_here() for rref in rrefs] == [11, 12, 13]
    assert {rref.owner_name() for rref in rrefs} == {"worker-0"}
    assert gm.rpc_sync("worker-1", fetch, (rrefs[0],)) == 11


def test_call_method_on_rref() -> None:
    rref = gm.remote("worker-0", Point, (10,))

    assert rref.rpc_sync().move(3) == 13
    assert rref.rpc_async().move(5).wait() == 18
    assert rref.remote().move(by=6).to_here() == 24


def test_local_value_not_on_owner() -> None:
    rref = gm.remote("worker-0", add, (1, 1))

    with pytest.raises(RuntimeError, match=r"UserRRef\(RRefId.*on worker-0, not on driver"):
        rref.local_value()


def test_remote_with_exception() -> None:
    rref = gm.remote("worker-0", raise_value)

    for _ in range(2):
        with pytest.raises(ValueError, match="expected error"):
            rref.to_here()
    mine = gm.remote("driver", raise_value)
    with pytest.raises(ValueError, match="expected error"):
        mine.to_here()


def test_remote_throw_elsewhere() -> None:
    rref = gm.remote("worker-0", raise_value)

    with pytest.raises(ValueError, match="expected error"):
        gm.rpc_sync("worker-1", fetch, (rref,))


@pytest.mark.parametrize("to", ["worker-0", "driver"])
def test_rref_proxy_tensor(to: str) -> None:
    rref = gm.remote(to, add, (gm.tensor([[1.0, 2.0], [3.0, 4.0]]), 1))

    assert rref.rpc_sync().size() == (2, 2)
    assert rref.rpc_async().numel().wait() == 4
    assert rref.remote().reshape(-1).to_here().data.tolist() == [2, 3, 4, 5]


@pytest.mark.parametrize("to", ["worker-0", "driver"])
def test_rref_proxy_class(to: str) -> None:
    rref = gm.remote(to, Point, (1,))
    proxy = rref.rpc_sync()

    assert [proxy.move(1) for _ in range(3)] == [2, 3, 4]
    assert rref.rpc_async().get().wait() == 4
    assert rref.remote().get().to_here() == 4


@pytest.mark.parametrize("name", ["nope", "_hidden", "x", "__len__"])
def test_rref_proxy_non_exist(name: str) -> None:
    rref = gm.remote("worker-0", Point, (1,))

    for way in (rref.rpc_sync, rref.remote):
        with pytest.raises(AttributeError, match=f"has no method '{name}'"):
            getattr(way(), name)
    fresh = gm.remote("worker-0", Point, (1,))
    with pytest.raises(AttributeError, match=f"has no method '{name}'"):
        fresh.rpc_async().__getattr__(name)().wait()


def test_rref_proxy_of_an_unregistered_class() -> None:
    rref = gm.remote("worker-0", echo, ([1, 2],))

    with pytest.raises(AttributeError, match="a list has no method 'append'"):
        rref.rpc_sync().append(3)
    assert rref.to_here() == [1, 2]


def test_rref_type_blocking_then_cached() -> None:
    rref = gm.remote("worker-0", Point, (1,))

    first = rref.remote_type()
    first.wait()

    assert rref.remote_type() is first
    assert first.wait().name == "Point"
    assert "move" in first.wait().methods


def test_rref_type_with_error() -> None:
    rref = gm.remote("worker-0", raise_value)

    with pytest.raises(ValueError, match="expected error"):
        rref.rpc_sync().get()


def test_rref_type_owner() -> None:
    assert gm.RRef(Point(1)).remote_type().wait().name == "Point"


def test_rref_type_slow_init() -> None:
    rref = gm.remote("worker-0", slow_point, (0.3,))

    assert rref.rpc_async().get().wait() == 7


def test_rref_str() -> None:
    assert str(gm.RRef(1)).startswith("OwnerRRef(GloballyUniqueId(created_on=driver, local_id=")
    assert str(gm.remote("worker-0", add, (1, 1))).startswith("UserRRef(RRefId = GloballyUniqueId")


def test_rref_get_future(eventually: Any) -> None:
    rref = gm.remote("worker-0", add, (1, 1))
    assert rref._used is not None

    rref._used.confirmed.wait(120)

    assert rref.confirmed_by_owner()


def test_user_rrefs_confirmed() -> None:
    rref = gm.remote("worker-0", add, (1, 1))

    assert gm.rpc_sync("worker-1", describe, (rref,)) == (True, False, "worker-0")
    assert gm.rpc_sync("worker-0", describe, (rref,)) == (True, True, "worker-0")


def test_user_rrefs_confirmed_remote() -> None:
    rref = gm.remote("worker-0", add, (1, 1))

    assert gm.remote("worker-1", describe, (rref,)).to_here() == (True, False, "worker-0")


def test_owner_rref_backward() -> None:
    x = gm.tensor([1.0, 2.0], requires_grad=True)
    rref = gm.RRef((x * x).sum())

    rref.backward(retain_graph=True)
    rref.backward()

    assert x.grad.tolist() == [4, 8]
    for value, text in [
        (gm.tensor([1.0]), "requires gradients"),
        (gm.tensor([1.0, 2.0], requires_grad=True), "of one element"),
        (5, "a reference to a tensor"),
    ]:
        with pytest.raises(RuntimeError, match=text):
            gm.RRef(value).backward()


def test_user_rref_backward_needs_a_context() -> None:
    rref = gm.remote("worker-0", add, (1, 1))

    with pytest.raises(RuntimeError, match="backward on another worker needs a context"):
        rref.backward()


def test_owners_drop_unused_values() -> None:
    rref = gm.RRef(Point(3))
    value = weakref.ref(rref.local_value())

    assert gm.rpc_sync("worker-0", describe, (rref,)) == (True, False, "driver")
    del rref

    import gc

    from gradmesh.sdk.rpc.current import current_agent

    end = current_agent().caller.deadline(10)
    while value() is not None and not end.passed:
        gc.collect()
    assert value() is None


def test_a_reference_to_a_former_process_is_refused() -> None:
    from gradmesh.sdk.rpc.current import current_agent
    from gradmesh.sdk.rpc.ids import WorkerId
    from gradmesh.sdk.rpc.rref.rref import RRef
    from gradmesh.sdk.rpc.rref.users import UserRef

    caller = current_agent().caller
    used = UserRef(WorkerId("worker-0", 5), caller.rrefs.keys.new(), caller.rrefs.keys.new())
    old: Any = RRef._of_user(caller, used)

    with pytest.raises(errors.RefNotFound, match="worker-0 restarted since"):
        old.to_here(timeout_s=5)

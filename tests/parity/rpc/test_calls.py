"""Calls: targets, functions, arguments."""

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from rpc_functions import (
    Point,
    add,
    chain,
    chain_seen,
    echo,
    endless,
    heavy,
    info,
    kind_of,
    nested_sum,
    nothing,
    whoami,
)

import gradmesh as gm
from gradmesh.protos import errors


def test_self_add() -> None:
    assert gm.rpc_sync("driver", add, (1, 2)) == 3
    assert gm.rpc_async("driver", add, (1, 2)).wait() == 3
    assert gm.remote("driver", add, (1, 2)).to_here() == 3


def test_send_to_rank() -> None:
    assert gm.rpc_sync(1, whoami) == "worker-1"
    assert gm.rpc_async(3, whoami).wait() == "worker-3"
    assert gm.remote(2, whoami).to_here() == "worker-2"
    with pytest.raises(errors.WorkerNotFound, match="no worker rank 77"):
        gm.rpc_sync(77, whoami)
    with pytest.raises(ValueError, match="named by its name, rank or WorkerInfo"):
        gm.rpc_sync(1.5, whoami)  # type: ignore[arg-type]


def test_expected_src() -> None:
    for rank in range(4):
        assert gm.rpc_sync(f"worker-{rank}", whoami) == f"worker-{rank}"


def test_scalar_add() -> None:
    assert gm.rpc_sync("worker-0", add, (gm.tensor([1.0, 2.0]), 2)).data.tolist() == [3, 4]


def test_async_add() -> None:
    future = gm.rpc_async("worker-0", add, (np.ones((2, 2)), np.ones((2, 2))))

    assert np.array_equal(future.wait(), np.full((2, 2), 2.0))


def test_multi_rpc() -> None:
    for n in range(20):
        assert gm.rpc_sync("worker-1", add, (np.full(n + 1, n), n)).tolist() == [2 * n] * (n + 1)


def test_builtins_called_by_name() -> None:
    # Only a name is sent, registered on the worker or not.
    assert gm.rpc_sync("worker-1", "rpc_functions.add", (1,), {"b": 5}) == 6


def test_py_class_constructor() -> None:
    assert gm.remote("worker-2", Point, (5,)).rpc_sync().get() == 5


def test_py_class_method_and_static_method() -> None:
    assert gm.rpc_sync("worker-2", Point.of, (5,)) == 5
    assert gm.rpc_sync("worker-2", Point.twice, (5,)) == 10


def test_py_class_instance_method_needs_a_reference() -> None:
    with pytest.raises(errors.InvalidRequest, match=r"get is not registered|is not registered"):
        gm.rpc_sync("worker-2", Point(4).get)


def test_py_no_return_result() -> None:
    assert gm.rpc_sync("worker-1", nothing) is None


@pytest.mark.parametrize(
    "value",
    [
        None, True, -(2**63), 1.5, "text ü", b"\0bytes", [1, [2, (3,)]], (1, 2), {"a": {"b": [1]}},
        OrderedDict(z=1, a=2), [], {}, (), float("inf"),
    ],
    ids=repr,
)  # fmt: skip
def test_py_nested_values(value: Any) -> None:
    got = gm.rpc_sync("worker-1", echo, (value,))

    assert got == value
    assert isinstance(value, type(got))


def test_py_tensors() -> None:
    got = gm.rpc_sync("worker-1", echo, (gm.tensor([[1.0, 2.0]]),))

    assert type(got) is gm.Tensor
    assert got.data.tolist() == [[1, 2]]
    assert gm.rpc_sync("worker-1", kind_of, (gm.tensor([1.0]),)) == "Tensor"
    assert gm.rpc_sync("worker-1", kind_of, (np.ones(1),)) == "ndarray"


def test_py_tensors_multi_async_call() -> None:
    futures = [gm.rpc_async("worker-1", add, (gm.tensor([float(n)]), n)) for n in range(100)]

    assert [future.wait().item() for future in futures] == [2 * n for n in range(100)]


def test_py_tensors_in_container() -> None:
    sent = {"list": [gm.tensor([1.0]), gm.tensor([2.0])], "one": gm.tensor([3.0])}

    got = gm.rpc_sync("worker-1", echo, (sent,))

    assert [t.item() for t in got["list"]] == [1, 2]
    assert got["one"].item() == 3


def test_non_cont_tensors() -> None:
    base = np.arange(24, dtype=np.float32).reshape(4, 6)

    for view in (base.T, base[::2, 1::3], base[:, ::-1]):
        assert np.array_equal(gm.rpc_sync("worker-1", echo, (view,)), view)
        assert np.array_equal(gm.rpc_sync("worker-1", echo, (gm.tensor(view),)).data, view)


def test_results_are_the_callers_own() -> None:
    got = gm.rpc_sync("worker-1", echo, (np.zeros(1000),))
    again = gm.rpc_sync("worker-1", echo, (np.ones(1000),))
    got[:] = 5

    assert again.sum() == 1000
    assert got.sum() == 5000


def test_stress_light_rpc() -> None:
    futures = [gm.rpc_async(f"worker-{n % 4}", add, (n, 1)) for n in range(1000)]

    assert sum(future.wait() for future in futures) == sum(range(1, 1001))


def test_stress_heavy_rpc() -> None:
    x = np.random.default_rng(0).normal(size=(50, 50))

    futures = [gm.rpc_async(f"worker-{n % 4}", heavy, (x,)) for n in range(20)]

    assert all(np.allclose(future.wait(), heavy(x)) for future in futures)


def test_nested_rpc() -> None:
    assert gm.rpc_sync("worker-0", nested_sum, ("worker-1", "worker-0", 3)) == 3


def test_nested_rpc_deeper_than_any_pool() -> None:
    assert gm.rpc_sync("worker-0", nested_sum, ("worker-1", "worker-0", 100)) == 100


def test_many_nested_rpc_at_once() -> None:
    futures = [
        gm.rpc_async(f"worker-{n % 4}", nested_sum, (f"worker-{(n + 1) % 4}", f"worker-{n % 4}", 6))
        for n in range(60)
    ]

    assert [future.wait() for future in futures] == [6] * 60


def test_endless_nesting_is_refused() -> None:
    with pytest.raises(RecursionError, match="calls wait for one another, at most 128"):
        gm.rpc_sync("worker-2", endless, ("worker-3", "worker-2"))


def test_multi_layer_nested_async_rpc(eventually: Any) -> None:
    workers = [f"worker-{rank}" for rank in range(4)]

    gm.rpc_sync("worker-0", chain, (workers, 20))

    def seen() -> set[int]:
        return {ttl for name in workers for ttl in gm.rpc_sync(name, chain_seen)}

    eventually(lambda: seen() >= set(range(21)), 20)


def test_debug_info(eventually: Any) -> None:
    # Calls of other tests may still run there.
    eventually(lambda: gm.rpc_sync("worker-3", info)["agent.server_active_calls"] == 1)
    counters = gm.rpc_sync("worker-3", info)

    assert {
        "agent.thread_pool_size", "agent.num_idle_threads", "agent.client_active_calls",
        "agent.server_active_async_calls", "num_owner_rrefs", "num_pending_users",
        "num_pending_futures", "num_forks",
    } <= set(counters)  # fmt: skip
    assert gm.rpc.debug_info()["agent.client_active_calls"] == 0


def test_parameter_servers_can_be_called() -> None:
    assert gm.rpc_sync("parameter-server-0", add, (1, 2)) == 3
    assert gm.rpc_sync("parameter-server-0", nested_sum, ("worker-1", "parameter-server-0", 3)) == 3

"""A RemoteModule in arguments and results: it is sent as its reference and works there."""

import gc
from typing import Any

import numpy as np
import pytest
from rpc_functions import (
    about_module,
    drop,
    echo,
    forward_module,
    hold,
    run_held_module,
    run_module,
    run_modules,
    set_training,
)

import gradmesh as gm
from gradmesh.protos.common.v1 import value_pb2 as pb
from gradmesh.protos.errors import InvalidFrame
from gradmesh.sdk.rpc.agent import Agent
from gradmesh.sdk.rpc.values import ValueDecoder

X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def linear() -> Any:
    return gm.nn.RemoteModule("worker-0", gm.nn.Linear, (3, 3))


def expected(linear: Any) -> Any:
    return linear(gm.tensor(X)).data


# The owner, another worker, and the sender itself.
@pytest.mark.parametrize("to", ["worker-0", "worker-1", "driver"])
@pytest.mark.parametrize("way", ["sync", "async", "remote"])
def test_as_an_argument(linear: Any, to: str, way: str) -> None:
    args = (linear, gm.tensor(X))
    if way == "sync":
        got = gm.rpc_sync(to, run_module, args)
    elif way == "async":
        got = gm.rpc_async(to, run_module, kwargs={"module": args[0], "x": args[1]}).wait()
    else:
        got = gm.remote(to, run_module, args).to_here()

    assert np.array_equal(got.data, expected(linear))


@pytest.mark.parametrize("to", ["worker-0", "worker-1", "driver"])
def test_a_module_equals_its_original_on_the_receiver(linear: Any, to: str) -> None:
    found = gm.rpc_sync(to, about_module, (linear,))

    weight, bias = (rref.to_here() for rref in linear.remote_parameters())
    assert np.array_equal(found["parameters"][0].data, weight.data)
    assert np.array_equal(found["parameters"][1].data, bias.data)
    assert (found["owner"], found["is_owner"]) == ("worker-0", to == "worker-0")
    assert (found["training"], found["here"]) == (True, to)
    # A worker passes its own reference to itself; its creation may be pending.
    assert found["confirmed"] or to == "driver"
    assert "Linear on worker-0/cpu" in found["text"]


def test_nested_in_lists_and_dicts(linear: Any) -> None:
    twice = gm.rpc_sync("worker-1", run_modules, ({"list": [linear, linear]}, gm.tensor(X)))

    assert np.array_equal(twice.data, linear(linear(gm.tensor(X))).data)


def test_forwarded_from_worker_to_worker(linear: Any) -> None:
    way = ["worker-2", "worker-3", "driver", "worker-0", "worker-1"]
    for count in range(len(way) + 1):
        got = gm.rpc_sync("worker-1", forward_module, (way[:count], linear, gm.tensor(X)))

        assert np.array_equal(got.data, expected(linear))


def test_as_a_result(linear: Any) -> None:
    for to in ("worker-0", "worker-1", "driver"):
        back = gm.rpc_sync(to, echo, ([linear],))[0]

        assert type(back) is gm.nn.RemoteModule
        assert np.array_equal(expected(back), expected(linear))


def test_as_an_argument_of_another_module(linear: Any) -> None:
    chain = gm.nn.RemoteModule(
        "worker-2", gm.nn.Sequential, (linear, gm.nn.RemoteModule("worker-1", gm.nn.ReLU))
    )

    assert np.array_equal(expected(chain), np.maximum(expected(linear), 0))


def test_training_mode_travels() -> None:
    dropout = gm.nn.RemoteModule("worker-0", gm.nn.Dropout, (1.0,))
    x = gm.tensor([1.0, 2.0])

    back = gm.rpc_sync("worker-1", set_training, (dropout, False))

    assert not back.training
    assert back(x).data.tolist() == [1, 2]
    assert not gm.rpc_sync("worker-2", about_module, (back,))["training"]


def test_gradients_flow_through_it(linear: Any) -> None:
    x = gm.tensor(X, requires_grad=True)
    weight = linear.remote_parameters()[0].to_here()
    with gm.autograd.context() as context:
        loss = gm.rpc_sync("worker-1", run_module, (linear, x)).sum()
        gm.autograd.backward(context, [loss])
        found = gm.autograd.get_gradients(context)[x]

    assert np.allclose(found, np.ones((2, 3), np.float32) @ weight.data)


def test_the_module_is_kept_while_a_receiver_holds_it(eventually: Any, driver: Agent) -> None:
    x = gm.tensor([-1.0, 2.0])
    module = gm.nn.RemoteModule(driver.name, gm.nn.ReLU)
    gm.rpc_sync("worker-1", hold, ("module", module))
    del module
    gc.collect()
    assert driver.control.flush(driver.caller.deadline(10))

    assert gm.rpc_sync("worker-1", run_held_module, ("module", x)).data.tolist() == [0, 2]
    gm.rpc_sync("worker-1", drop, ("module",))
    eventually(lambda: len(driver.rrefs.owners) == 0)


@pytest.mark.parametrize(
    "sent",
    [
        pb.ModuleValue(device="cpu", type="Linear"),
        pb.ModuleValue(device="abacus", type="Linear", module=pb.RemoteRef(owner="worker-0")),
    ],
)
def test_bad_values_are_refused(sent: pb.ModuleValue) -> None:
    with pytest.raises(InvalidFrame):
        ValueDecoder([], False, lambda ref: ref).read(pb.Value(module_value=sent))


def test_local_modules_do_not_travel() -> None:
    with pytest.raises(ValueError, match="a Linear cannot be sent"):
        gm.rpc_sync("worker-0", echo, (gm.nn.Linear(2, 2),))

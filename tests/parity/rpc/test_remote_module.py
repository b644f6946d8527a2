"""Modules that live on another worker."""

from typing import Any

import numpy as np
import pytest

import gradmesh as gm
from gradmesh.protos import errors


@pytest.fixture
def linear() -> Any:
    return gm.nn.RemoteModule("worker-0/cpu", gm.nn.Linear, (3, 2))


def test_forward(linear: Any) -> None:
    x = gm.tensor(np.ones((4, 3), np.float32))
    weight, bias = (rref.to_here() for rref in linear.remote_parameters())

    expected = x.data @ weight.data.T + bias.data

    assert np.allclose(linear(x).data, expected)
    assert np.allclose(linear.forward(x).data, expected)
    assert np.allclose(linear.forward_async(x).wait().data, expected)


@pytest.mark.parametrize("place", ["worker-1", "worker-1/cpu", "rank:1", "rank:1/cpu"])
def test_places(place: str) -> None:
    module = gm.nn.RemoteModule(place, "gradmesh.nn.ReLU")

    assert module.get_module_rref().owner_name() == "worker-1"
    assert module(gm.tensor([-1.0, 2.0])).data.tolist() == [0, 2]


@pytest.mark.parametrize("place", ["", "/cpu", "worker-1/tpu", "rank:x/cpu", "a/b/c"])
def test_invalid_remote_devices_are_refused(place: str) -> None:
    with pytest.raises(errors.InvalidRequest):
        gm.nn.RemoteModule(place, gm.nn.ReLU)


def test_unknown_worker_and_class() -> None:
    with pytest.raises(errors.WorkerNotFound):
        gm.nn.RemoteModule("nobody/cpu", gm.nn.ReLU)
    with pytest.raises(errors.FunctionNotFound, match=r"has no function 'no\.such'"):
        gm.nn.RemoteModule("worker-0", "no.such")
    with pytest.raises(errors.InvalidRequest, match="is not a module class"):
        gm.nn.RemoteModule("worker-0", "rpc_functions.add")
    with pytest.raises(TypeError, match="missing"):
        gm.nn.RemoteModule("worker-0", gm.nn.Linear)


def test_remote_parameters(linear: Any) -> None:
    params = linear.remote_parameters()

    assert [param.to_here().shape for param in params] == [(2, 3), (2,)]
    assert {param.owner_name() for param in params} == {"worker-0"}


def test_get_module_rref(linear: Any) -> None:
    rref = linear.get_module_rref()

    assert rref.remote_type().wait().name == "Linear"
    assert rref.rpc_sync().extra_repr() == gm.nn.Linear(3, 2).extra_repr()


def test_init_from_module_rref(linear: Any) -> None:
    again = gm.nn.RemoteModule.init_from_module_rref("worker-0/cpu", linear.get_module_rref())
    x = gm.tensor(np.ones((1, 3), np.float32))

    assert np.array_equal(again(x).data, linear(x).data)
    with pytest.raises(errors.InvalidRequest, match="the module is on 'worker-0', not on"):
        gm.nn.RemoteModule.init_from_module_rref("worker-1", linear.get_module_rref())


def test_train_eval() -> None:
    dropout = gm.nn.RemoteModule("worker-0", gm.nn.Dropout, (1.0,))
    x = gm.tensor([1.0, 2.0])

    assert dropout.train()(x).data.tolist() == [0, 0]
    assert dropout.eval()(x).data.tolist() == [1, 2]
    assert not dropout.training


@pytest.mark.parametrize(
    "method",
    ["parameters", "named_parameters", "buffers", "children", "modules", "state_dict", "zero_grad",
     "float", "to", "apply", "requires_grad_", "load_state_dict", "register_buffer"],
)  # fmt: skip
def test_methods_on_local_parameters_are_refused(linear: Any, method: str) -> None:
    with pytest.raises(ValueError, match=r"use remote_parameters\(\)"):
        getattr(linear, method)()


def test_in_a_model_of_local_layers(linear: Any) -> None:
    model = gm.nn.Sequential(linear, gm.nn.Linear(2, 1))
    x = gm.tensor(np.ones((4, 3), np.float32))

    assert model(x).shape == (4, 1)
    assert len(list(model.parameters())) == 2
    assert "Linear on worker-0/cpu" in repr(linear)


def test_errors_of_forward_keep_their_type(linear: Any) -> None:
    with pytest.raises(ValueError, match="on worker-0"):
        linear(gm.tensor([1.0]))

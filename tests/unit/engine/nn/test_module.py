import copy
from typing import Any

import numpy as np
import pytest

from gradmesh.engine import autograd as ag
from gradmesh.engine import nn
from gradmesh.engine.backend import Generator, ShapeError


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.second = nn.Sequential(nn.ReLU(), nn.Linear(4, 2, bias=False))
        self.register_buffer("count", ag.zeros(1))
        self.register_buffer("scratch", ag.zeros(1), persistent=False)

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x))


def test_names_are_dotted_and_ordered() -> None:
    net = Net()

    assert [n for n, _ in net.named_parameters()] == [
        "first.weight",
        "first.bias",
        "second.1.weight",
    ]
    assert list(net.state_dict()) == ["count", "first.weight", "first.bias", "second.1.weight"]
    assert [n for n, _ in net.named_modules()] == ["", "first", "second", "second.0", "second.1"]


def test_shared_parameter_appears_once() -> None:
    net = Net()
    net.again = net.first

    assert len(list(net.parameters())) == 3


def test_state_round_trips() -> None:
    net, other = Net(), Net()
    other.load_state_dict(net.state_dict())
    x = ag.ones(1, 3)

    assert other(x).tolist() == net(x).tolist()


def test_wrong_state_changes_nothing() -> None:
    net = Net()
    before = net.first.weight.data.copy()
    state = {k: v.data + 1 for k, v in net.state_dict().items()}

    with pytest.raises(KeyError, match=r"second\.1\.weight"):
        net.load_state_dict({k: v for k, v in state.items() if k != "second.1.weight"})
    with pytest.raises(ShapeError, match=r"second\.1\.weight"):
        net.load_state_dict({**state, "second.1.weight": np.zeros((1, 1))})

    np.testing.assert_array_equal(net.first.weight.data, before)


def test_train_and_eval_reach_all_modules() -> None:
    net = Net().eval()

    assert not any(m.training for m in net.modules())
    assert all(m.training for m in net.train().modules())


def test_hooks_see_and_change_results() -> None:
    net = nn.Linear(2, 1)
    net.register_forward_pre_hook(lambda m, args: (args[0] * 0,))
    handle = net.register_forward_hook(lambda m, args, out: out * 0 + 7)

    assert net(ag.ones(1, 2)).tolist() == [[7.0]]
    handle.remove()
    assert net(ag.ones(1, 2)).tolist() == [net.bias.tolist()]


def test_to_casts_floats_in_place() -> None:
    net = Net()
    weight = net.first.weight

    net.double()

    assert net.first.weight is weight
    assert weight.dtype == np.float64


def test_a_missing_super_init_is_named() -> None:
    class Bad(nn.Module):
        def __init__(self) -> None:
            self.layer = nn.ReLU()

    with pytest.raises(AttributeError, match="super"):
        Bad()


def test_generator_makes_layers_repeat() -> None:
    first = nn.MLP([3, 4, 1], generator=Generator(5))
    second = nn.MLP([3, 4, 1], generator=Generator(5))

    assert first.layers[1].weight.tolist() == second.layers[1].weight.tolist()


def test_module_is_freed_without_gradients() -> None:
    net = Net()
    net(ag.ones(1, 3)).sum().backward()

    net.zero_grad()

    assert all(p.grad is None for p in net.parameters())


def test_fused_relu_gives_the_same_and_respects_hooks() -> None:
    layer = nn.Linear(3, 4)
    model = nn.Sequential(layer, nn.ReLU())
    x = ag.randn(5, 3)
    expected = layer(x).relu().tolist()
    fused = model(x)
    seen: list[Any] = []
    layer.register_forward_hook(lambda m, args, out: seen.append(float(out.min())))

    watched = model(x)

    assert fused.tolist() == watched.tolist() == expected
    assert seen[0] < 0


def test_hooks_of_the_layers_of_an_mlp_are_called() -> None:
    model = nn.MLP([3, 2, 1])
    x = ag.randn(4, 3)
    plain = model(x)
    seen: list[tuple[int, ...]] = []
    for layer in model.layers:
        layer.register_forward_hook(lambda module, args, result: seen.append(result.shape))

    hooked = model(x)

    assert seen == [(4, 2), (4, 1)]
    assert (hooked.data == plain.data).all()


def test_to_takes_gradients_along() -> None:
    layer = nn.Linear(2, 1)
    layer(ag.ones(3, 2)).sum().backward()

    layer.double()

    assert layer.weight.dtype == layer.weight.grad.dtype == np.float64
    assert layer.cpu() is layer


def test_a_deep_copy_trains_alone() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))

    twin = copy.deepcopy(model)
    twin(ag.randn(4, 2)).sum().backward()

    assert twin[0].weight is next(twin.parameters())
    assert all(p.grad is None for p in model.parameters())
    assert all(p.grad is not None for p in twin.parameters())
    assert model[1].num_batches_tracked.item() == 0

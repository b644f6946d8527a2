import pytest

from gradmesh.engine import autograd as ag
from gradmesh.engine import nn


def test_sequential_takes_names_and_can_be_walked() -> None:
    model = nn.Sequential({"first": nn.Linear(2, 3), "then": nn.ReLU()})

    assert [name for name, _ in model.named_children()] == ["first", "then"]
    assert len(model) == 2
    assert [type(m) for m in model] == [nn.Linear, nn.ReLU]
    assert model[1] is list(model)[1]
    assert model[:1][0] is model[0]
    assert len(model.append(nn.Tanh())) == 3
    assert len(nn.Sequential({})) == 0


def test_list_registers_its_modules() -> None:
    layers = nn.ModuleList([nn.Linear(2, 2)]).extend([nn.Linear(2, 1)])

    assert len(layers) == 2
    assert [name for name, _ in layers.named_parameters()] == [
        *("0.weight", "0.bias", "1.weight", "1.bias")
    ]
    assert layers[-1].out_features == 1


def test_dict_registers_its_modules() -> None:
    towers = nn.ModuleDict({"user": nn.Linear(2, 2)})
    towers["item"] = nn.Linear(3, 2)

    assert list(towers) == list(towers.keys()) == ["user", "item"]
    assert len(towers) == len(list(towers.values())) == 2
    assert dict(towers.items())["item"] is towers["item"]
    assert "item.weight" in towers.state_dict()


def test_parts_are_found_by_dotted_name() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.BatchNorm1d(3)))

    assert model.get_submodule("1.0") is model[1][0]
    assert model.get_submodule("") is model
    assert model.get_parameter("0.weight") is model[0].weight
    assert model.get_buffer("1.0.running_mean") is model[1][0].running_mean
    for find in (model.get_submodule, model.get_parameter, model.get_buffer):
        with pytest.raises(AttributeError, match="Sequential has no"):
            find("nothing.here")


def test_shown_as_a_tree() -> None:
    text = repr(nn.Sequential(nn.Linear(2, 3), nn.ReLU()))

    assert text.splitlines()[1] == "  (0): Linear(in_features=2, out_features=3, bias=True)"


def test_an_mlp_needs_two_sizes() -> None:
    with pytest.raises(ValueError, match="two sizes"):
        nn.MLP([3])
    assert (nn.MLP([3, 2], final_relu=True)(ag.randn(5, 3)).data >= 0).all()

"""Every layer: float64 gradcheck of input and parameters, and equality with torch's layer."""

from typing import Any

import numpy as np
import pytest

from gradmesh.engine import autograd as ag
from gradmesh.engine import nn

LAYERS: list[tuple[str, tuple[Any, ...], dict[str, Any], tuple[int, ...]]] = [
    ("Linear", (5, 3), {}, (4, 5)),
    ("Linear", (5, 3), {"bias": False}, (2, 4, 5)),
    ("Conv2d", (4, 6, 3), {"stride": 2, "padding": 1, "groups": 2}, (2, 4, 5, 7)),
    ("Conv2d", (3, 5, (1, 2)), {"dilation": (1, 2), "bias": False}, (1, 3, 4, 5)),
    ("BatchNorm1d", (3,), {}, (5, 3)),
    ("BatchNorm1d", (3,), {"affine": False}, (5, 3, 2)),
    ("BatchNorm2d", (3,), {}, (2, 3, 3, 2)),
    ("LayerNorm", (5,), {}, (3, 5)),
    ("LayerNorm", ((4, 5),), {"bias": False}, (3, 4, 5)),
    ("MaxPool2d", (2,), {}, (1, 2, 5, 4)),
    ("AvgPool2d", (3,), {"stride": 2, "padding": 1}, (1, 2, 5, 4)),
    ("AdaptiveAvgPool2d", ((2, 3),), {}, (1, 2, 5, 7)),
    ("Flatten", (), {}, (2, 3, 4)),
    ("ReLU", (), {}, (3, 5)),
    ("Sigmoid", (), {}, (3, 5)),
    ("Tanh", (), {}, (3, 5)),
    ("GELU", (), {}, (3, 5)),
    ("GELU", (), {"approximate": "tanh"}, (3, 5)),
    ("SiLU", (), {}, (3, 5)),
    ("Softmax", (), {"dim": 1}, (3, 5)),
    ("LogSoftmax", (), {"dim": 1}, (3, 5)),
    ("Identity", (), {}, (3, 5)),
]


@pytest.mark.parametrize(("name", "args", "options", "shape"), LAYERS)
def test_gradients_of_input_and_parameters(
    name: str, args: tuple[Any, ...], options: dict[str, Any], shape: tuple[int, ...]
) -> None:
    layer = getattr(nn, name)(*args, **options).double()
    x = ag.randn(*shape, dtype="float64", requires_grad=True)

    assert ag.gradcheck(lambda first, *_: layer(first), [x, *layer.parameters()])


@pytest.mark.parametrize(("name", "args", "options", "shape"), LAYERS)
def test_layer_equals_torchs(
    name: str, args: tuple[Any, ...], options: dict[str, Any], shape: tuple[int, ...]
) -> None:
    torch = pytest.importorskip("torch")
    mine = getattr(nn, name)(*args, **options)
    peer = getattr(torch.nn, name)(*args, **options)
    state = {k: torch.tensor(v.data.copy()) for k, v in mine.state_dict().items()}
    peer.load_state_dict(state)
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    a, b = ag.tensor(values, requires_grad=True), torch.tensor(values, requires_grad=True)

    out, expected = mine(a), peer(b)
    seed = np.random.default_rng(1).normal(size=out.shape).astype(np.float32)
    out.backward(seed)
    expected.backward(torch.tensor(seed))

    np.testing.assert_allclose(out.data, expected.detach().numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(a.grad.data, b.grad.numpy(), rtol=1e-4, atol=1e-5)
    for p, q in zip(mine.parameters(), peer.parameters(), strict=True):
        np.testing.assert_allclose(p.grad.data, q.grad.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.MLP([4, 3, 2]), (5, 4)),
        (nn.CrossNetwork(4, 2), (5, 4)),
        (nn.DotInteraction(), (3, 4, 2)),
        (nn.DotInteraction(self_interaction=True), (3, 4, 2)),
        (nn.FactorizationMachine(), (3, 4, 2)),
        (nn.Bottleneck(4, 2, stride=2), (2, 4, 4, 4)),
    ],
)
def test_gradients_of_composed_layers(layer: nn.Module, shape: tuple[int, ...]) -> None:
    layer.double()
    x = ag.randn(*shape, dtype="float64", requires_grad=True)

    assert ag.gradcheck(lambda first, *_: layer(first), [x, *layer.parameters()], atol=1e-4)


@pytest.mark.slow
def test_resnet50_equals_torchs() -> None:
    torch = pytest.importorskip("torch")
    from gradmesh.benchmarks.dense_torch import resnet50_model

    mine, peer = nn.resnet.resnet50(), resnet50_model(torch)
    with torch.no_grad():
        for p, q in zip(mine.parameters(), peer.parameters(), strict=True):
            q.copy_(torch.tensor(p.data))
    x = np.random.default_rng(0).normal(size=(4, 3, 64, 64)).astype(np.float32)

    out, expected = mine(ag.tensor(x)), peer(torch.tensor(x))
    nn.functional.cross_entropy(out, ag.tensor([1, 2, 3, 4])).backward()
    torch.nn.functional.cross_entropy(expected, torch.tensor([1, 2, 3, 4])).backward()

    np.testing.assert_allclose(out.data, expected.detach().numpy(), rtol=2e-2, atol=2e-2)
    last, peer_last = list(mine.parameters())[-1], list(peer.parameters())[-1]
    np.testing.assert_allclose(last.grad.data, peer_last.grad.numpy(), rtol=2e-2, atol=1e-3)

from typing import Any

import numpy as np
import pytest

from gradmesh.engine import autograd as ag
from gradmesh.engine import nn
from gradmesh.engine.backend import ShapeError


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("name", "shape"),
    [("BatchNorm1d", (6, 3)), ("BatchNorm1d", (4, 3, 5)), ("BatchNorm2d", (2, 3, 5, 4))],
)
def test_batch_norm_follows_torch_in_training_and_evaluation(
    name: str, shape: tuple[int, ...], dtype: str, assert_parity: Any
) -> None:
    torch = pytest.importorskip("torch")
    mine = getattr(nn, name)(3).to(dtype=dtype)
    peer = getattr(torch.nn, name)(3).to(getattr(torch, dtype))
    rng = np.random.default_rng(0)

    def compare(x: Any) -> None:
        a, b = ag.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
        out, expected = mine(a), peer(b)
        (out * out * out).sum().backward()
        (expected * expected * expected).sum().backward()
        assert_parity(out.data, expected)
        assert_parity(a.grad.data, b.grad)

    for _ in range(3):
        compare(rng.normal(2.0, 3.0, size=shape).astype(dtype))
    mine.eval()
    peer.eval()
    compare(rng.normal(size=shape).astype(dtype))

    for key, value in peer.state_dict().items():
        assert_parity(mine.state_dict()[key].data, value)


def test_wrong_channels_are_named() -> None:
    with pytest.raises(ShapeError, match=r"BatchNorm2d\(3\)"):
        nn.BatchNorm2d(3)(ag.ones(1, 4, 2, 2))
    with pytest.raises(ShapeError, match="more than one value"):
        nn.BatchNorm1d(3)(ag.ones(1, 3))


def test_layer_norm_without_parameters() -> None:
    layer = nn.LayerNorm(4, elementwise_affine=False)

    out = layer(ag.tensor([[1.0, 2.0, 3.0, 4.0]]))

    assert not list(layer.parameters())
    assert abs(float(out.sum())) < 1e-6


def test_statistics_without_momentum_are_plain_means() -> None:
    torch = pytest.importorskip("torch")
    mine, peer = nn.BatchNorm1d(3, momentum=None), torch.nn.BatchNorm1d(3, momentum=None)
    rng = np.random.default_rng(0)

    for _ in range(4):
        x = rng.normal(2.0, 3.0, size=(5, 3)).astype(np.float32)
        mine(ag.tensor(x))
        peer(torch.tensor(x))

    for key, value in peer.state_dict().items():
        np.testing.assert_allclose(mine.state_dict()[key].data, value.numpy(), rtol=1e-5)


def test_without_statistics_the_batch_is_used_always() -> None:
    layer = nn.BatchNorm1d(3, track_running_stats=False)
    x = ag.randn(5, 3)

    assert layer(x).tolist() == layer.eval()(x).tolist()
    assert "running_mean" not in layer.state_dict()

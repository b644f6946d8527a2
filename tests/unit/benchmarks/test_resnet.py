import numpy as np
import pytest

from gradmesh.benchmarks import resnet
from gradmesh.engine import autograd as ag
from gradmesh.engine import nn


@pytest.mark.parametrize(
    ("make", "millions"),
    [
        (resnet.resnet50, 25.557),
        (resnet.resnet101, 44.549),
        (resnet.resnext50_32x4d, 25.029),
        pytest.param(resnet.resnext101_32x8d, 88.791, marks=pytest.mark.slow),
    ],
)
def test_parameter_counts_are_those_of_the_papers(make: object, millions: float) -> None:
    count = sum(p.numel() for p in make().parameters())  # type: ignore[operator]

    assert count / 1e6 == pytest.approx(millions, abs=5e-4)


def test_names_are_those_of_torchvision() -> None:
    names = [name for name, _ in resnet.resnet50().named_parameters()]

    assert names[0] == "conv1.weight"
    assert "layer1.0.downsample.1.bias" in names
    assert "layer4.2.conv3.weight" in names
    assert names[-1] == "fc.bias"


def test_small_residual_network_trains() -> None:
    net = resnet.ResNet((1, 1, 1, 1), num_classes=3, groups=2, width_per_group=32)
    x = ag.randn(2, 3, 33, 32)

    loss = nn.functional.cross_entropy(net(x), ag.tensor([0, 2]))
    loss.backward()

    assert all(p.grad is not None and np.isfinite(p.grad.data).all() for p in net.parameters())

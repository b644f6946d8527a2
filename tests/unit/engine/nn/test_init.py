"""Initialisers: bounds, means and spreads are those of torch's formulas."""

import math
from typing import Any

import numpy as np
import pytest

from gradmesh.engine import autograd as ag
from gradmesh.engine.backend import Generator, ShapeError
from gradmesh.engine.nn import init

SHAPE = (200, 150)
# Fans of SHAPE are 150 in, 200 out.
SPREADS: list[tuple[str, dict[str, Any], float]] = [
    ("uniform_", {"a": -1.0, "b": 3.0}, 4 / math.sqrt(12)),
    ("normal_", {"mean": 0.5, "std": 2.0}, 2.0),
    ("xavier_uniform_", {"gain": 2.0}, 2 * math.sqrt(2 / 350)),
    ("xavier_normal_", {}, math.sqrt(2 / 350)),
    ("kaiming_uniform_", {"nonlinearity": "relu"}, math.sqrt(2 / 150)),
    ("kaiming_uniform_", {"a": math.sqrt(5)}, math.sqrt(2 / 6 / 150)),
    ("kaiming_normal_", {"mode": "fan_out", "nonlinearity": "relu"}, math.sqrt(2 / 200)),
]


@pytest.mark.parametrize(("name", "options", "spread"), SPREADS)
def test_spread_is_that_of_the_formula(name: str, options: dict[str, Any], spread: float) -> None:
    filled = getattr(init, name)(ag.empty(*SHAPE), generator=Generator(0), **options)

    assert float(filled.data.std()) == pytest.approx(spread, rel=0.02)


@pytest.mark.parametrize(("name", "options", "spread"), SPREADS)
def test_spread_equals_torch(name: str, options: dict[str, Any], spread: float) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)

    filled = getattr(torch.nn.init, name)(torch.empty(*SHAPE), **options)

    assert float(filled.std()) == pytest.approx(spread, rel=0.02)


@pytest.mark.parametrize("name", [name for name, _, _ in SPREADS])
def test_a_seed_repeats_the_values(name: str) -> None:
    first, second = (getattr(init, name)(ag.empty(3, 4), generator=Generator(7)) for _ in range(2))

    assert first.tolist() == second.tolist()


def test_truncated_normal_stays_within_its_bounds() -> None:
    filled = init.trunc_normal_(ag.empty(1000), std=1.0, a=-1.0, b=0.5, generator=Generator(0))

    assert filled.data.min() >= -1.0
    assert filled.data.max() <= 0.5
    assert filled.data.std() > 0.3


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (4, 4), (4, 2, 3)])
def test_orthogonal_rows_or_columns(shape: tuple[int, ...]) -> None:
    matrix = init.orthogonal_(ag.empty(*shape, dtype="float64"), 2.0, Generator(0)).data
    flat = matrix.reshape(shape[0], -1)
    small = flat @ flat.T if flat.shape[0] <= flat.shape[1] else flat.T @ flat

    np.testing.assert_allclose(small, 4 * np.eye(len(small)), atol=1e-12)


def test_constants_and_identity() -> None:
    assert init.constant_(ag.empty(2), 2.5).tolist() == [2.5, 2.5]
    assert init.ones_(ag.empty(2)).tolist() == [1.0, 1.0]
    assert init.zeros_(ag.empty(2)).tolist() == [0.0, 0.0]
    assert init.eye_(ag.empty(2, 3)).tolist() == [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]


@pytest.mark.parametrize("name", ["linear", "conv2d", "sigmoid", "tanh", "relu", "selu"])
def test_gains_equal_torch(name: str) -> None:
    torch = pytest.importorskip("torch")

    assert init.calculate_gain(name) == pytest.approx(torch.nn.init.calculate_gain(name))
    assert init.calculate_gain("leaky_relu", 0.2) == pytest.approx(math.sqrt(2 / 1.04))


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ShapeError, match="two axes"):
        init.xavier_uniform_(ag.empty(3))
    with pytest.raises(ValueError, match="magic"):
        init.calculate_gain("magic")


def test_filling_counts_as_a_change() -> None:
    x = ag.ones(2, requires_grad=True)
    y = (x * x).sum()

    with ag.no_grad():
        init.zeros_(x)

    with pytest.raises(ag.InplaceError):
        y.backward()

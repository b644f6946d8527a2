import numpy as np
import pytest

from gradmesh.engine import autograd as ag
from gradmesh.engine import nn
from gradmesh.engine.backend import Generator


def test_dropout_scales_what_it_keeps_and_its_gradient() -> None:
    layer = nn.Dropout(0.25, generator=Generator(0))
    x = ag.ones(10_000, requires_grad=True)

    out = layer(x)
    out.sum().backward()

    assert np.unique(out.data).tolist() == pytest.approx([0.0, 4 / 3])
    assert abs(float(out.mean()) - 1) < 0.02
    np.testing.assert_array_equal(x.grad.data, out.data)


def test_dropout_repeats_from_its_seed() -> None:
    x = ag.ones(100)

    first = nn.Dropout(0.5, generator=Generator(3))(x)
    second = nn.Dropout(0.5, generator=Generator(3))(x)

    assert first.tolist() == second.tolist()


def test_evaluation_changes_nothing() -> None:
    x = ag.ones(4)

    assert nn.Dropout(0.5).eval()(x) is x


def test_probability_outside_is_refused() -> None:
    with pytest.raises(ValueError, match=r"1\.5"):
        nn.Dropout(1.5)


def test_gradients_match_differences() -> None:
    x = ag.randn(3, 5, dtype="float64", requires_grad=True)

    assert ag.gradcheck(lambda t: nn.functional.dropout(t, 0.4, generator=Generator(3)), [x])

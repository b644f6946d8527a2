from typing import Any

import numpy as np
import pytest

from gradmesh.engine import autograd as ag
from gradmesh.engine import nn
from gradmesh.engine.backend import DtypeError, ShapeError


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: nn.GroupNorm(3, 4), ShapeError, "4 channels cannot be in 3 groups"),
        (lambda: nn.GroupNorm(0, 4), ShapeError, "0 groups"),
        (lambda: nn.GroupNorm(2, 4)(ag.ones(2, 6, 3)), ShapeError, r"GroupNorm\(2, 4\)"),
        (lambda: nn.GroupNorm(2, 4)(ag.ones(4)), ShapeError, r"GroupNorm\(2, 4\)"),
        (lambda: nn.functional.group_norm(ag.ones(4), 2), ShapeError, "channels"),
        (lambda: nn.functional.group_norm(ag.ones(2, 3), 2), ShapeError, "2 groups"),
        (lambda: nn.functional.group_norm(ag.ones(1, 2), 2), ShapeError, "more than one value"),
        (lambda: nn.functional.group_norm(ag.ones(2, 4), 2, ag.ones(3)), ShapeError, "weight"),
        (
            lambda: nn.functional.group_norm(ag.ones(2, 4), 2, None, ag.ones(2, 2)),
            ShapeError,
            "bias",
        ),
        (
            lambda: nn.functional.group_norm(ag.ones(2, 4), 2, ag.ones(4, dtype="float64")),
            DtypeError,
            "float64",
        ),
    ],
)
def test_arguments_that_do_not_fit_are_named(call: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_summed_in_float32(dtype: str) -> None:
    # Squares of these are beyond float16.
    values = 1000 * np.random.default_rng(0).normal(size=(2, 4, 9)).astype(np.float32)
    half, full = nn.GroupNorm(2, 4, dtype=dtype), nn.GroupNorm(2, 4)
    x = ag.tensor(values, dtype=dtype, requires_grad=True)
    y = ag.tensor(x.data.astype(np.float32), requires_grad=True)

    found, expected = half(x), full(y)
    (found * found).sum().backward()
    (expected * expected).sum().backward()

    assert found.dtype == x.dtype == x.grad.dtype == half.weight.grad.dtype
    np.testing.assert_allclose(found.data.astype(np.float32), expected.data, rtol=2e-2, atol=2e-2)
    np.testing.assert_allclose(
        half.weight.grad.data.astype(np.float32), full.weight.grad.data, rtol=2e-2
    )


def test_a_large_mean_leaves_the_spread_exact() -> None:
    torch = pytest.importorskip("torch")
    x = (1000 + np.random.default_rng(0).normal(size=(2, 4, 9))).astype(np.float32)

    found = nn.functional.group_norm(ag.tensor(x), 2)

    expected = torch.nn.functional.group_norm(torch.tensor(x.astype(np.float64)), 2)
    np.testing.assert_allclose(found.data, expected.numpy(), atol=1e-3)


def test_sequences_of_no_length_leave_gradients_of_0() -> None:
    layer = nn.GroupNorm(2, 4)
    x = ag.randn(2, 4, 0, requires_grad=True)

    layer(x).sum().backward()

    assert x.grad.shape == (2, 4, 0)
    assert layer.weight.grad.tolist() == layer.bias.grad.tolist() == [0] * 4

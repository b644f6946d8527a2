import itertools
from typing import Any

import numpy as np
import pytest

from gradmesh.engine import autograd, nn

LAYOUTS = [
    (order, axes)
    for ndim in (1, 2, 3, 4, 5)
    for axes in itertools.permutations(range(ndim))
    for order in ("plain", "reversed", "strided")
]


def laid_out(order: str, axes: tuple[int, ...]) -> Any:
    """Return an array whose last axis has length 3, its axes permuted in memory."""
    shape = [2, 3, 2, 1, 2][: len(axes)]
    shape[axes[-1]] = 3
    array = np.random.default_rng(0).normal(size=shape)
    if order == "strided":
        array = np.repeat(array, 2, axis=0)[::2]
    if order == "reversed":
        array = array[::-1]
    return array.transpose(axes)


@pytest.mark.parametrize("has_relu", [False, True])
def test_a_layer_is_correct_for_every_layout_of_its_input(has_relu: bool) -> None:
    rng = np.random.default_rng(1)
    weight, bias = rng.normal(size=(4, 3)), rng.normal(size=4)
    call = nn.functional.linear_relu if has_relu else nn.functional.linear
    for order, axes in LAYOUTS:
        x = autograd.Tensor(laid_out(order, axes), requires_grad=True)
        w, b = autograd.tensor(weight, requires_grad=True), autograd.tensor(bias)

        out = call(x, w, b)
        seed = rng.normal(size=out.shape)
        out.backward(seed)

        expected = x.data @ weight.T + bias
        given = seed * (expected > 0) if has_relu else seed
        if has_relu:
            expected = np.maximum(expected, 0)
        np.testing.assert_allclose(out.data, expected, rtol=1e-12)
        np.testing.assert_allclose(x.grad.data, given @ weight, rtol=1e-12)
        flat = given.reshape(-1, 4).T @ x.data.reshape(-1, 3)
        np.testing.assert_allclose(w.grad.data, flat, rtol=1e-11, atol=1e-12)


def test_a_layer_without_inputs_adds_its_bias() -> None:
    out = nn.functional.linear(autograd.zeros(2, 2, 0), autograd.zeros(3, 0), autograd.ones(3))

    assert out.data.tolist() == np.ones((2, 2, 3)).tolist()

import math

import numpy as np
import pytest

from gradmesh.engine import autograd as ag
from gradmesh.engine import nn
from gradmesh.engine.autograd import RowGrad


@pytest.mark.parametrize("norm_type", [1.0, 2.0, 3.0, math.inf])
@pytest.mark.parametrize("max_norm", [0.5, 100.0])
def test_norm_clipping_equals_torch(norm_type: float, max_norm: float) -> None:
    torch = pytest.importorskip("torch")
    grads = [np.random.default_rng(i).normal(size=(3, 4)).astype(np.float32) for i in range(2)]
    mine = [nn.Parameter(ag.ones(3, 4)) for _ in grads]
    theirs = [torch.nn.Parameter(torch.ones(3, 4)) for _ in grads]
    for p, q, g in zip(mine, theirs, grads, strict=True):
        p.grad, q.grad = ag.tensor(g), torch.tensor(g)

    found = nn.clip_grad_norm_(mine, max_norm, norm_type)
    expected = torch.nn.utils.clip_grad_norm_(theirs, max_norm, norm_type)

    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    for p, q in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(p.grad.data, q.grad.numpy(), rtol=1e-5)


def test_row_gradient_is_clipped_like_its_dense_form() -> None:
    rows = RowGrad(np.array([1, 1, 0]), np.ones((3, 2), np.float32), 4)
    p, q = nn.Parameter(ag.ones(4, 2)), nn.Parameter(ag.ones(4, 2))
    p.grad, q.grad = rows, ag.tensor(rows.to_dense())

    nn.clip_grad_norm_(p, 1.0)
    nn.clip_grad_norm_(q, 1.0)

    np.testing.assert_allclose(p.grad.to_dense(), q.grad.data, rtol=1e-6)


def test_value_clipping() -> None:
    p = nn.Parameter(ag.ones(3))
    p.grad = ag.tensor([-3.0, 0.5, 3.0])

    nn.clip_grad_value_([p], 1.0)

    assert p.grad.tolist() == [-1.0, 0.5, 1.0]


def test_norm_that_is_not_finite_is_refused_on_request() -> None:
    p = nn.Parameter(ag.ones(2))
    p.grad = ag.tensor([float("inf"), 1.0])

    with pytest.raises(ArithmeticError, match="inf"):
        nn.clip_grad_norm_([p], 1.0, error_if_nonfinite=True)

    assert p.grad.tolist() == [float("inf"), 1.0]

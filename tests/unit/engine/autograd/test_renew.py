"""Parameters that change while graphs still need their old values."""

import numpy as np
import pytest

from gradmesh.engine import autograd as ag
from gradmesh.engine import nn, optim


def test_a_step_between_forward_and_backward_breaks_a_backward_without_it() -> None:
    layer = nn.Linear(3, 2)
    loss = layer(ag.tensor(np.ones((4, 3), np.float32), requires_grad=True)).sum()
    with ag.no_grad():
        layer.weight.mul_(0.5)

    with pytest.raises(ag.InplaceError):
        loss.backward()


@pytest.mark.parametrize("make", [optim.SGD, optim.Adam, optim.Adagrad])
def test_a_backward_sees_the_values_of_its_own_forward(make: type) -> None:
    layer = nn.Linear(3, 2)
    x = ag.tensor(np.ones((4, 3), np.float32), requires_grad=True)
    before = layer.weight.data.copy()
    loss = layer(x).sum()

    other = {p: np.ones_like(p.data) for p in layer.parameters()}
    optimizer = make(layer.parameters(), lr=0.1)
    ag.renew(layer.parameters())
    optimizer.step(other)
    into: dict = {}
    ag.run_backward([loss], into=into)

    assert not np.array_equal(layer.weight.data, before)
    np.testing.assert_allclose(into[x], np.tile(before.sum(0), (4, 1)), rtol=1e-6)
    np.testing.assert_array_equal(into[layer.weight], np.full((2, 3), 4.0))
    assert layer(x).sum().item() != loss.item()


def test_views_and_changes_of_a_renewed_leaf() -> None:
    weight = ag.tensor(np.ones((2, 3), np.float32), requires_grad=True)
    ag.renew([weight])

    (weight.T[0] * 2).sum().backward()
    with ag.no_grad():
        weight[0] = 4.0

    assert weight.grad.tolist() == [[2, 0, 0], [2, 0, 0]]
    assert weight.tolist() == [[4, 4, 4], [1, 1, 1]]

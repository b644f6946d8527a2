from typing import Any

import numpy as np
import pytest

from gradmesh.engine import autograd as ag
from gradmesh.engine import nn, optim
from gradmesh.engine.autograd import InplaceError


def test_value_needed_by_backward_and_changed_is_refused() -> None:
    x = ag.tensor([1.0, 2.0], requires_grad=True)
    y = x * 2
    z = (y * y).sum()
    y.add_(1)

    with pytest.raises(ag.InplaceError, match="backward of Mul"):
        z.backward()


def test_change_through_a_view_is_seen() -> None:
    x = ag.tensor([1.0, 2.0], requires_grad=True)
    y = x.exp()
    z = (y * y).sum()
    with ag.no_grad():
        y[0:1].add_(1)

    with pytest.raises(ag.InplaceError):
        z.backward()


def test_change_of_an_unneeded_value_is_recorded() -> None:
    x = ag.tensor([1.0, 2.0], requires_grad=True)
    y = x + 1
    y.mul_(3)
    y += x

    y.sum().backward()

    assert y.tolist() == [7.0, 11.0]
    assert x.grad.tolist() == [4.0, 4.0]


def test_a_power_in_place_reaches_views_of_the_memory() -> None:
    x = ag.tensor([[1.0, 2.0], [3.0, 4.0]])
    row = x[1]
    row **= 2

    assert x.tolist() == [[1.0, 2.0], [9.0, 16.0]]


def test_leaf_that_requires_grad_is_protected() -> None:
    x = ag.tensor([1.0], requires_grad=True)

    with pytest.raises(ag.InplaceError, match="leaf"):
        x.add_(1)
    with ag.no_grad():
        x.add_(1)

    assert x.tolist() == [2.0]


def test_recorded_view_is_protected() -> None:
    x = ag.tensor([1.0, 2.0], requires_grad=True)
    y = x * 2

    with pytest.raises(ag.InplaceError, match="view"):
        y[0:1].mul_(2)


def test_set_items_sends_gradients_to_the_value() -> None:
    x = ag.tensor([1.0, 2.0, 3.0], requires_grad=True)
    v = ag.tensor([5.0], requires_grad=True)
    y = x * 2
    y[1:2] = v

    (y * y).sum().backward()

    assert y.tolist() == [2.0, 5.0, 6.0]
    assert x.grad.tolist() == [8.0, 0.0, 24.0]
    assert v.grad.tolist() == [10.0]


def test_copy_and_fill() -> None:
    x = ag.zeros(2)

    assert x.copy_(ag.tensor([1, 2])).tolist() == [1.0, 2.0]
    assert x.fill_(3).tolist() == [3.0, 3.0]
    assert x.zero_().tolist() == [0.0, 0.0]


def test_change_of_an_input_that_was_not_saved_is_allowed() -> None:
    x = ag.tensor([1.0, -2.0], requires_grad=True)
    y = x * 1
    z = y.sigmoid()  # keeps its result, not y

    y.add_(1.0)
    z.sum().backward()

    expected = 1 / (1 + np.exp(-np.array([1.0, -2.0])))
    np.testing.assert_allclose(x.grad.data, expected * (1 - expected), rtol=1e-6)


@pytest.mark.parametrize("change", [lambda y: y.mul_(2.0), lambda y: y.__setitem__(0, 5.0)])
def test_a_view_older_than_a_recorded_change_is_refused(change: Any) -> None:
    x = ag.ones(3, requires_grad=True)
    y = x * 1
    view = y[:2]

    change(y)

    with pytest.raises(InplaceError, match="take the view again"):
        view.sum()
    with pytest.raises(InplaceError, match="take the view again"):
        view.backward(ag.ones(2))
    with ag.no_grad():
        assert view.sum().item() == y[:2].sum().item()
    y[:2].sum().backward()
    assert x.grad.data[2] == 0


def test_a_view_of_a_constant_that_became_a_result_is_refused() -> None:
    memory = ag.zeros(3)
    view = memory[:2]

    memory.add_(ag.ones(3, requires_grad=True))

    with pytest.raises(InplaceError, match="take the view again"):
        view.sum()


def test_a_view_sees_changes_that_are_not_recorded() -> None:
    weight = ag.ones(3, requires_grad=True)
    view = weight.reshape(3, 1)

    with ag.no_grad():
        weight.mul_(2.0)
    view.sum().backward()

    assert view.tolist() == [[2.0]] * 3
    assert weight.grad.tolist() == [1.0] * 3


def _set(y: Any, other: Any) -> Any:
    y[1:, 0] = other[0, :2]
    return y


@pytest.mark.parametrize(
    "change",
    [
        lambda y, other: y.add_(other),
        lambda y, other: y.sub_(other),
        lambda y, other: y.mul_(other),
        lambda y, other: y.div_(other + 3.0),
        lambda y, other: y.copy_(other * 2),
        _set,
    ],
)
def test_gradients_of_recorded_changes_match_differences(change: Any) -> None:
    x = ag.rand(3, 4, dtype="float64", requires_grad=True)
    other = ag.rand(3, 4, dtype="float64", requires_grad=True)

    assert ag.gradcheck(lambda a, b: change(a * 1, b) * 2, [x, other])


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

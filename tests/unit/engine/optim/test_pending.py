import numpy as np
import pytest

from gradmesh.engine.autograd import RowGrad, Tensor
from gradmesh.engine.optim import SGD, Adam
from gradmesh.engine.optim.pending import PendingState, PendingStep


def param(*shape):
    return Tensor(np.ones(shape, np.float32), requires_grad=True)


def ones(*shape):
    return np.ones(shape, np.float32)


def test_nothing_changes_before_it_is_published():
    weight, idle = param(2, 3), param(4)
    optimizer = Adam([weight, idle], lr=0.1)
    old = weight.data
    pending = PendingStep(optimizer, {weight: ones(2, 3)})

    assert pending.params[0] is weight
    assert (old == 1).all()
    assert not optimizer.state

    pending.publish()
    assert (old == 1).all()
    np.testing.assert_allclose(weight.data, 0.9, rtol=1e-5)
    assert optimizer.state[weight]["step"] == 1
    assert (idle.data == 1).all()
    assert idle not in optimizer.state


def test_values_of_others_are_kept():
    weight = param(3)
    optimizer = SGD([weight], lr=0.5)
    first = PendingStep(optimizer, {weight: ones(3)})
    second = PendingStep(optimizer, {weight: ones(3)})
    first.publish()

    assert not second.is_current
    second.publish()
    assert (weight.data == 0).all()


def test_views_are_taken_of_published_values():
    weight = param(2, 3)
    PendingStep(SGD([weight], lr=0.5), {weight: ones(2, 3)}).publish()

    (weight.reshape(-1)[1:] * 2).sum().backward()

    assert weight.grad.tolist() == [[0, 2, 2], [2, 2, 2]]


def test_options_of_one_step():
    weight = param(3)
    optimizer = SGD([weight], lr=0.5)
    PendingStep(optimizer, {weight: ones(3)}, [{"lr": 1.0}]).publish()

    assert (weight.data == 0).all()
    assert optimizer.lr == 0.5


def test_rows():
    weight = param(4, 2)
    optimizer = Adam([weight], lr=0.1)
    for _ in range(2):
        PendingStep(optimizer, {weight: RowGrad(np.array([1]), ones(1, 2), 4)}).publish()

    np.testing.assert_allclose(weight.data[1], 0.8, rtol=1e-5)
    assert (weight.data[[0, 2, 3]] == 1).all()


def test_ordinary_steps_continue_after_join():
    weight = param(3)
    optimizer = SGD([weight], lr=0.25, momentum=0.5)
    twin = param(3)
    plain = SGD([twin], lr=0.25, momentum=0.5)
    grad = Tensor(ones(3))
    for _ in range(2):
        optimizer.step({weight: grad})
        PendingStep(optimizer, {weight: grad}).publish()
        plain.step({twin: grad})
        plain.step({twin: grad})

    assert (weight.data == twin.data).all()


def test_state_is_checked():
    weight = param(3)
    optimizer = Adam([weight], lr=0.1)
    with pytest.raises(ValueError, match="saved state"):
        PendingState(optimizer, [weight], [{"step": 1, "slots": {"m": ones(9)}}])
    with pytest.raises(ValueError, match="2 parameters for 1"):
        PendingState(optimizer, [weight], [None, None])

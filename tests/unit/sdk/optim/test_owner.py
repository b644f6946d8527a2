import numpy as np
import pytest

import gradmesh as gm
from gradmesh.protos import limits
from gradmesh.protos.errors import InvalidRequest
from gradmesh.sdk.optim.owner import STEP_COUNTS, OwnerOptimizer


@pytest.fixture
def param():
    return gm.tensor(np.ones(3, np.float32), requires_grad=True)


def make(param):
    return OwnerOptimizer(gm.optim.SGD([param], lr=0.25))


def step(owner, number, param):
    owner.prepare(number, {param: np.ones(3, np.float32)})
    owner.commit(number)


def test_messages_that_come_again_step_once(param):
    owner = make(param)

    for _ in range(3):
        step(owner, 1, param)
        owner.commit(1)

    assert param.data.tolist() == [0.75] * 3
    step(owner, 2, param)
    assert param.data.tolist() == [0.5] * 3


def test_an_abandoned_step_never_takes_effect(param):
    owner = make(param)
    owner.prepare(1, {param: np.ones(3, np.float32)})
    owner.abandon(1)
    owner.abandon(2)
    owner.prepare(2, {param: np.ones(3, np.float32)})  # later than its end

    for number in (1, 2, 3):
        with pytest.raises(InvalidRequest, match="nothing was prepared"):
            owner.commit(number)
    assert param.data.tolist() == [1.0] * 3


def test_the_oldest_of_too_many_prepared_steps_is_abandoned(param):
    owner = make(param)
    for number in range(1, limits.MAX_PREPARED_STEPS + 3):
        owner.prepare(number, {param: np.ones(3, np.float32)})

    assert len(owner._pending) == limits.MAX_PREPARED_STEPS
    for number in (1, 2):
        with pytest.raises(InvalidRequest, match="nothing was prepared"):
            owner.commit(number)
    owner.commit(3)
    assert param.data.tolist() == [0.75] * 3


def test_gradients_of_others_and_missing_ones_change_nothing(param):
    owner = make(param)
    other = gm.tensor(np.ones(3, np.float32), requires_grad=True)

    owner.prepare(1, {other: np.ones(3, np.float32)})
    owner.commit(1)

    assert param.data.tolist() == other.data.tolist() == [1.0] * 3


def test_pace_is_that_of_clients_with_common_parameters(param):
    alone = gm.tensor(np.ones(3, np.float32), requires_grad=True)
    first, second, third = make(param), make(param), make(alone)
    for number in (1, 2, 3):
        step(first, number, param)
    step(third, 1, alone)

    assert (first.lead, second.lead, third.lead) == (3, 0, 0)
    assert STEP_COUNTS.largest_lead() == 3
    step(second, 1, param)
    late = make(param)
    assert (first.lead, second.lead, late.lead) == (2, 0, 0)
    del second, late
    assert first.lead == 0

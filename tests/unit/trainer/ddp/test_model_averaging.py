"""Schedule and errors of averagers, and the state of their optimizer."""

import logging

import numpy as np
import pytest

from gradmesh.engine import optim
from gradmesh.engine.autograd import Tensor
from gradmesh.engine.nn import Parameter
from gradmesh.trainer.ddp import (
    HierarchicalModelAverager,
    PeriodicModelAverager,
    PostLocalSGDOptimizer,
)
from gradmesh.trainer.errors import NoDefaultGroup
from gradmesh.trainer.process_group import new_subgroups


def parameter(value):
    made = Parameter(np.full(2, value, np.float32))
    made.grad = Tensor(np.zeros(2, np.float32))
    return made


def history(group, averager, steps):
    """Return a parameter after each step, which begins as rank + 1 every time."""
    seen = []
    for _ in range(steps):
        mine = parameter(group.rank + 1)
        averager.average_parameters([mine])
        seen.append(float(mine.data[0]))
    return seen


def test_a_periodic_averager_begins_with_the_first_step_after_the_warm_up(world):
    got = world(2).run(
        lambda group: history(group, PeriodicModelAverager(2, 1, process_group=group), 5)
    )

    assert got == [[1, 1.5, 1, 1.5, 1], [2, 1.5, 2, 1.5, 2]]


def test_the_last_period_that_divides_the_step_selects_the_group(world):
    def job(group):
        averager = HierarchicalModelAverager({1: 1, 2: 2, 4: 4}, process_group=group)
        return history(group, averager, 5)

    got = world(4).run(job)

    assert got[0] == [2.5, 1, 1.5, 1, 2.5]
    assert got[3] == [2.5, 4, 3.5, 4, 2.5]


def test_parameters_without_a_gradient_stay_and_the_step_is_counted(world):
    def job(group):
        averager = PeriodicModelAverager(3, process_group=group)
        mine, other = parameter(group.rank), parameter(group.rank)
        mine.grad = None
        averager.average_parameters([{"params": [mine, other]}])
        averager.average_parameters([{"params": [mine, other]}], {mine: other.grad})
        return float(mine.data[0]), float(other.data[0]), averager.step

    assert world(2).run(job) == [(0, 0.5, 2), (1, 0.5, 2)]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda group: PeriodicModelAverager(0, process_group=group), "period is 0"),
        (lambda group: PeriodicModelAverager(2, -1, process_group=group), "warmup_steps is -1"),
        (lambda group: HierarchicalModelAverager({}, process_group=group), "empty"),
        (lambda group: HierarchicalModelAverager({0: 2}, process_group=group), "period of 0"),
        (lambda group: HierarchicalModelAverager({2: 1}, process_group=group), "must have all 2"),
        (lambda group: HierarchicalModelAverager({1: 3, 2: 2}, 0, group), "groups of 3"),
        (lambda group: new_subgroups(3, group), "groups of 3"),
    ],
)
def test_invalid_options_are_refused(world, make, text):
    for error in world(2).errors(make):
        assert isinstance(error, ValueError)
        assert text in str(error)


def test_objects_that_are_not_parameters_are_refused(world):
    averager = PeriodicModelAverager(2, process_group=world(1).groups[0])

    with pytest.raises(TypeError, match="not str"):
        averager.average_parameters(["weight"])
    with pytest.raises(NoDefaultGroup):
        PeriodicModelAverager(2)


def test_its_state_holds_the_averagers_step(world, caplog):
    group = world(1).groups[0]

    def make():
        inner = optim.SGD([parameter(1.0)], lr=0.1, momentum=0.9)
        return PostLocalSGDOptimizer(inner, PeriodicModelAverager(4, process_group=group))

    first, second = make(), make()
    scheduler = optim.lr_scheduler.StepLR(first, step_size=1)
    for _ in range(3):
        first.step()
        scheduler.step()
    second.load_state_dict(first.state_dict())

    assert second.averager.step == 3
    assert second.optim.lr == first.param_groups[0]["lr"]
    assert [kept["step"] for kept in second.state.values()] == [3]
    with caplog.at_level(logging.WARNING):
        second.load_state_dict(first.optim.state_dict())
    assert second.averager.step == 0
    assert "restarts at 0" in caplog.text
    second.add_param_group({"params": [parameter(2.0)]})
    second.zero_grad()
    assert all(p.grad is None for g in second.param_groups for p in g["params"])


def test_averaging_at_every_step_is_logged(world, caplog):
    with caplog.at_level(logging.WARNING):
        PeriodicModelAverager(1, process_group=world(1).groups[0])

    assert "leave it out" in caplog.text

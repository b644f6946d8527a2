"""The options of a table, as serialised recipes."""

import numpy as np
import pytest

from gradmesh.engine import optim
from gradmesh.engine.nn import Parameter
from gradmesh.engine.optim import lr_scheduler
from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.protos.errors import InvalidRequest
from gradmesh.sdk.table.gradients import BadGradients
from gradmesh.sdk.table.lifetime import Admission, Eviction
from gradmesh.sdk.table.recipe import rule_of, to_recipe
from gradmesh.sdk.table.schedule import counts_steps, schedule_of, schedule_recipe
from gradmesh.sdk.table.spec import row_bytes

Recipe = table_pb2.Recipe
CYCLE = {"base_lr": 0.1, "max_lr": 1, "step_size_up": 2, "step_size_down": 2, "mode": 0, "gamma": 1}


@pytest.mark.parametrize(
    "optimizer",
    [
        optim.Adam(lr=0.1, betas=(0.5, 0.6), amsgrad=True),
        optim.SGD(lr=0.1, momentum=0.9, nesterov=True),
        optim.FTRL(lr=0.1, l1=0.2),
        optim.Rprop(lr=0.1),
        optim.NAdam(lr=0.1, momentum_decay=0.1, decoupled_weight_decay=True),
        optim.RAdam(lr=0.1, betas=(0.5, 0.6), maximize=True),
    ],
    ids=lambda o: type(o).__name__,
)
def test_an_optimizer_is_serialised_with_all_its_options(optimizer):
    assert rule_of(to_recipe(optimizer)) == (optimizer.rule, 0.1)


def test_a_table_that_descends_is_the_one_of_before_there_was_maximize():
    recipes = [to_recipe(optim.SGD(lr=0.1, maximize=up)) for up in (False, True)]

    assert ["maximize" in recipe.settings for recipe in recipes] == [False, True]


@pytest.mark.parametrize("name", ["betas", "betas.2", "eps.0", "magic.0"])
def test_pairs_have_their_numbers(name):
    settings = {"lr": 0.1, "betas.0": 0.9, "betas.1": 0.99, name: 0.5}

    with pytest.raises(InvalidRequest):
        rule_of(Recipe(name="adam", settings=settings))


def test_a_schedule_is_serialised():
    schedule = lr_scheduler.CosineAnnealingLR(optim.SGD(0.1), T_max=10, eta_min=0.01)

    rate = schedule_of(schedule_recipe(schedule))

    assert [rate(0.1, step) for step in (0, 5, 10)] == pytest.approx([0.1, 0.055, 0.01])


@pytest.mark.parametrize(
    "make",
    [
        lambda o: lr_scheduler.OneCycleLR(o, 0.5, 20, cycle_momentum=False, three_phase=True),
        lambda o: lr_scheduler.OneCycleLR(
            o, 0.5, 20, anneal_strategy="linear", cycle_momentum=False, div_factor=5.0
        ),
        lambda o: lr_scheduler.CyclicLR(o, 0.1, 0.5, 3, 5, cycle_momentum=False),
        lambda o: lr_scheduler.CyclicLR(
            o, 0.1, 0.5, 3, mode="exp_range", gamma=0.9, cycle_momentum=False
        ),
    ],
    ids=["one-cycle", "one-cycle-linear", "cyclic", "cyclic-range"],
)
def test_a_cyclic_schedule_is_serialised(make):
    schedule = make(optim.SGD(0.1))

    rate = schedule_of(schedule_recipe(schedule))

    assert [rate(0.1, step) for step in range(20)] == [
        schedule.rate(0.1, step, 0) for step in range(20)
    ]


def test_a_table_stays_at_the_last_rate_of_one_cycle():
    schedule = lr_scheduler.OneCycleLR(
        optim.SGD(0.1), 0.5, 20, anneal_strategy="linear", cycle_momentum=False
    )

    rate = schedule_of(schedule_recipe(schedule))

    assert rate(0.1, 19) == rate(0.1, 20) == rate(0.1, 500) == pytest.approx(0.5 / 25 / 1e4)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda o: lr_scheduler.LambdaLR(o, []), "LambdaLR"),
        (lambda o: lr_scheduler.ReduceLROnPlateau(o), "no metric"),
        (lambda o: lr_scheduler.OneCycleLR(o, 0.5, 20), "cycle_momentum=False"),
        (lambda o: lr_scheduler.CyclicLR(o, 0.1, 0.5), "cycle_momentum=False"),
        (
            lambda o: lr_scheduler.CyclicLR(o, 0.1, 0.5, scale_fn=float, cycle_momentum=False),
            "scale_fn",
        ),
    ],
)
def test_a_schedule_of_a_function_is_not_serialisable(make, reason):
    with pytest.raises(InvalidRequest, match=reason):
        schedule_recipe(make(optim.SGD(0.1)))


def test_a_table_has_one_rate():
    rows = [Parameter(np.ones(1, np.float32)) for _ in range(2)]
    optimizer = optim.SGD([{"params": [row]} for row in rows], lr=0.1)
    schedule = lr_scheduler.OneCycleLR(optimizer, [0.5, 0.6], 20, cycle_momentum=False)

    with pytest.raises(InvalidRequest, match="one learning rate"):
        schedule_recipe(schedule)


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(name="magic"),
        Recipe(name="step", settings={"gamma": 0.5}),
        Recipe(name="step", settings={"gamma": 0.5, "step_size": 0}),
        Recipe(name="step", settings={"gamma": 0.5, "step_size": 1.5}),
        Recipe(name="exponential", settings={"gamma": float("nan")}),
        Recipe(name="cyclic", settings={**CYCLE, "step_size_up": 0}),
        Recipe(name="cyclic", settings={**CYCLE, "mode": 3}),
        Recipe(name="cyclic", settings={**CYCLE, "mode": 0.5}),
    ],
)
def test_a_malformed_schedule_is_refused(recipe):
    with pytest.raises(InvalidRequest):
        schedule_of(recipe)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Admission("magic"),
        lambda: Admission.frequency(0),
        lambda: Admission.frequency(256),
        lambda: Admission("frequency", {"count": 1.5}),
        lambda: Admission.probability(0.0),
        lambda: Admission.probability(1.1),
        lambda: Admission.probability(float("nan")),
        lambda: Eviction("magic"),
        lambda: Eviction("lru", {"steps": 1.0}),
        lambda: Eviction.ttl(0),
        lambda: Eviction("ttl"),
        lambda: BadGradients("magic"),
        lambda: BadGradients.clip(0.0),
        lambda: BadGradients.clip(float("inf")),
        lambda: BadGradients("clip"),
        lambda: BadGradients("reject", {"limit": 1.0}),
    ],
)
def test_malformed_options_are_refused(make):
    with pytest.raises(InvalidRequest):
        make()


@pytest.mark.parametrize(
    ("optimizer", "dtype", "expected"),
    [
        (optim.SGD(0.1), np.float32, 64 * 4),
        (optim.RowwiseAdagrad(0.1), np.float16, 64 * 2 + 4),
        (optim.Adam(0.1), np.float32, 3 * 64 * 4),
        (optim.FTRL(0.1), np.float64, 3 * 64 * 8),
    ],
)
def test_a_row_takes_its_numbers_and_its_state(optimizer, dtype, expected):
    assert row_bytes(64, np.dtype(dtype), optimizer.rule) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"optimizer": to_recipe(optim.SGD(0.1, momentum=0.9))}, False),
        ({"optimizer": to_recipe(optim.SGD(0.1, momentum=0.9, dampening=0.1))}, True),
        ({"optimizer": to_recipe(optim.Adam(0.1))}, True),
        ({"optimizer": to_recipe(optim.NAdam(0.1))}, True),
        ({"optimizer": to_recipe(optim.RAdam(0.1))}, True),
        ({"schedule": Recipe(name="step")}, True),
        ({"eviction": Recipe(name="ttl")}, True),
        ({"eviction": Recipe(name="lru")}, False),
    ],
)
def test_steps_count_where_they_change_rows(fields, expected):
    assert counts_steps(table_pb2.TableSpec(**fields)) is expected

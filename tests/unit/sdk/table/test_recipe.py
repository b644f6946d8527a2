import math

import numpy as np
import pytest

from gradmesh.engine import optim
from gradmesh.engine.autograd import Tensor
from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.protos.errors import InvalidRequest
from gradmesh.sdk.table.recipe import Initializer, initializer_of, rule_of, to_recipe


@pytest.mark.parametrize(
    "initializer", [Initializer.uniform(0.5), Initializer.normal(2.0), Initializer.constant(-1.0)]
)
def test_initializers_are_serialised(initializer):
    assert initializer_of(to_recipe(initializer)) == initializer


@pytest.mark.parametrize(
    "optimizer",
    [
        optim.SGD(lr=0.1, momentum=0.9, nesterov=True),
        optim.Adagrad(lr=0.1, lr_decay=0.5),
        optim.RowwiseAdagrad(lr=0.0),
    ],
)
def test_optimizers_are_serialised(optimizer):
    rule, lr = rule_of(to_recipe(optimizer))

    assert (rule, lr) == (optimizer.rule, optimizer.lr)


def test_an_optimizer_with_parameters_is_not_a_recipe():
    bound = optim.SGD([Tensor(np.ones(1), requires_grad=True)], lr=0.1)

    with pytest.raises(InvalidRequest, match=r"e\.g\. SGD\(lr=0\.05\)"):
        to_recipe(bound)


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("magic", {}),
        ("uniform", {"low": 0.0}),
        ("constant", {"value": math.inf}),
        ("constant", {"value": 0.0, "more": 1.0}),
    ],
)
def test_initializers_that_make_no_sense_are_refused(name, numbers):
    with pytest.raises(InvalidRequest, match=name):
        Initializer(name, numbers)


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("magic", {"lr": 0.1}),
        ("sgd", {}),
        ("sgd", {"lr": -0.1}),
        ("sgd", {"lr": math.nan}),
        ("sgd", {"lr": 0.1, "momentum": math.nan}),
        ("sgd", {"lr": 0.1, "beta": 0.5}),
        ("sgd", {"lr": 0.1, "nesterov": 1.0}),
    ],
)
def test_rules_that_make_no_sense_are_refused(name, numbers):
    with pytest.raises(InvalidRequest, match=name):
        rule_of(table_pb2.Recipe(name=name, settings=numbers))


def test_rows_depend_on_seed_and_id_alone():
    out, part = np.empty((5, 3), np.float32), np.empty((2, 3), np.float32)

    Initializer.normal(1.0).fill(out, np.arange(5), seed=9)
    Initializer.normal(1.0).fill(part, np.array([4, 1]), seed=9)

    np.testing.assert_array_equal(part, out[[4, 1]])

"""Options of optimizers: their ranges, groups with their own, and changes between steps."""

from typing import Any

import numpy as np
import pytest

from gradmesh.engine import autograd as ag
from gradmesh.engine import nn, optim
from gradmesh.engine.autograd import RowGrad


@pytest.mark.parametrize("name", ["NAdam", "RAdam"])
@pytest.mark.parametrize(
    "options",
    [
        {"betas": (0.9, 1.0)},
        {"betas": (-0.1, 0.9)},
        {"betas": (0.9,)},
        {"eps": -1e-8},
        {"weight_decay": -0.1},
        {"lr": -1.0},
        {"momentum_decay": -0.1},
    ],
    ids=str,
)
def test_options_outside_their_range_are_refused(name: str, options: dict[str, Any]) -> None:
    wrong = TypeError if name == "RAdam" and "momentum_decay" in options else ValueError

    with pytest.raises(wrong, match=next(iter(options)).replace("lr", "learning rate")):
        getattr(optim, name)([nn.Parameter(ag.ones(1))], **options)


def test_nadam_resumes_at_any_step() -> None:
    rule = optim.make_rule("nadam", {"betas": (0.95, 0.99)})
    steps = [1, 2, 3, 400, 2, 2000, 5000, 400]

    found = {step: rule.numbers(np.float64, 0.1, step) for step in range(1, 5001)}

    for step in steps:
        assert rule.numbers(np.float64, 0.1, step) == found[step]


def test_groups_climb_and_descend_on_their_own() -> None:
    p, q = nn.Parameter(ag.ones(1)), nn.Parameter(ag.ones(1))
    optimizer = optim.SGD([{"params": [p]}, {"params": [q], "maximize": True}], lr=0.5)
    p.grad = q.grad = ag.ones(1)

    optimizer.step()

    assert (p.item(), q.item()) == (0.5, 1.5)


def test_state_saved_before_there_was_maximize_is_taken_over() -> None:
    p = nn.Parameter(ag.ones(1))
    optimizer = optim.SGD([p], lr=0.5, maximize=True)
    saved = optimizer.state_dict()
    for group in saved["param_groups"]:
        del group["maximize"]

    optimizer.load_state_dict(saved)

    assert optimizer.param_groups[0]["maximize"] is True


@pytest.mark.parametrize("sparse", [False, True])
def test_momentum_may_start_at_a_later_step(sparse: bool) -> None:
    p, q = nn.Parameter(ag.ones(2, 2)), nn.Parameter(ag.ones(2, 2))
    late, plain = optim.SGD([p], lr=0.1), optim.SGD([q], lr=0.1)

    def step() -> None:
        for param, optimizer in ((p, late), (q, plain)):
            rows = np.ones((2, 2), np.float32)
            param.grad = RowGrad(np.arange(2), rows, 2) if sparse else ag.ones(2, 2)
            optimizer.step()

    step()
    late.param_groups[0]["momentum"] = 0.5
    step()
    step()

    np.testing.assert_allclose(q.data - p.data, np.full((2, 2), 0.05), rtol=1e-5)


@pytest.mark.parametrize("sparse", [False, True])
def test_the_first_gradient_of_a_late_momentum_is_not_dampened(sparse: bool) -> None:
    p = nn.Parameter(ag.ones(1, 1))
    optimizer = optim.SGD([p], lr=0.1, dampening=0.5)

    def step() -> None:
        row = np.ones((1, 1), np.float32)
        optimizer.step({p: RowGrad(np.arange(1), row, 1) if sparse else row})

    step()
    optimizer.param_groups[0]["momentum"] = 0.9
    step()
    step()

    # torch's: 1 - 0.1 - 0.1 - 0.1 * (0.9 + 0.5)
    assert p.item() == pytest.approx(0.66)


def test_options_may_be_lists() -> None:
    def trained(betas: object) -> float:
        p = nn.Parameter(ag.ones(1))
        optimizer = optim.Adam([p])
        optimizer.param_groups[0]["betas"] = betas
        optimizer.step({p: np.ones(1, np.float32)})
        saved = optimizer.state_dict()
        saved["param_groups"][0]["betas"] = betas
        optimizer.load_state_dict(saved)
        optimizer.step({p: np.ones(1, np.float32)})
        return float(p.item())

    assert trained([0.9, 0.99]) == trained((0.9, 0.99))


def test_rules_of_options_that_change_each_step_are_not_kept() -> None:
    p = nn.Parameter(ag.ones(1))
    optimizer = optim.SGD([p], lr=0.1)
    for step in range(1000):
        optimizer.param_groups[0]["momentum"] = step / 2000
        optimizer.step({p: np.ones(1, np.float32)})

    assert len(optimizer._rules) < 300

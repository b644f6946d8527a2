"""Schedules that change momentum, end, or follow a metric: errors and resuming."""

from typing import Any

import numpy as np
import pytest

from gradmesh.engine import autograd as ag
from gradmesh.engine import nn, optim

lr_scheduler = optim.lr_scheduler


def two_groups(name: str = "SGD", **options: Any) -> Any:
    groups = [{"params": [nn.Parameter(ag.ones(2))], "lr": lr} for lr in (0.1, 0.7)]
    return getattr(optim, name)(groups, lr=0.1, **options)


PLATEAUS: list[dict[str, Any]] = [
    {},
    {"mode": "max", "patience": 3},
    {"patience": 2, "cooldown": 4, "factor": 0.5},
    {"patience": 1, "threshold": 0.05, "threshold_mode": "abs"},
    {"mode": "max", "patience": 1, "threshold": 0.05, "threshold_mode": "abs", "factor": 0.8},
    {"patience": 0, "factor": 0.7, "min_lr": [0.01, 0.2]},
    {"patience": 0, "factor": 0.9, "eps": 0.02},
    {"patience": 2, "factor": 0.0, "min_lr": 0.05},
]


@pytest.mark.parametrize("options", PLATEAUS, ids=str)
def test_plateaus_equal_torch(options: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    groups = [{"params": [torch.nn.Parameter(torch.ones(1))], "lr": lr} for lr in (0.1, 0.7)]
    optimizer, peer = two_groups(), torch.optim.SGD(groups, lr=0.1)
    schedule = lr_scheduler.ReduceLROnPlateau(optimizer, **options)
    expected = torch.optim.lr_scheduler.ReduceLROnPlateau(peer, **options)
    rng = np.random.default_rng(0)

    for step in range(300):
        metric = 1 / (1 + step / 20) + 0.2 * rng.normal() if step % 50 else float("nan")
        schedule.step(ag.tensor(metric) if step % 2 else metric)
        expected.step(float(np.float32(metric)) if step % 2 else metric)
        assert schedule.get_last_lr() == pytest.approx(expected.get_last_lr(), rel=1e-9)
    for name in ("best", "num_bad_epochs", "cooldown_counter", "last_epoch"):
        assert getattr(schedule, name) == getattr(expected, name)


def run(schedule: Any, begin: int, end: int) -> list[Any]:
    found = []
    for step in range(begin, end):
        if isinstance(schedule, lr_scheduler.ReduceLROnPlateau):
            schedule.step(1.0 + step % 7)
        else:
            schedule.step()
        groups = schedule.optimizer.param_groups
        found.append([(g["lr"], g["momentum"]) for g in groups])
    return found


@pytest.mark.parametrize(
    "make",
    [
        lambda o: lr_scheduler.OneCycleLR(o, [0.5, 0.7], 30),
        lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.5, 4, 3, mode="triangular2"),
        lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=2, cooldown=2, factor=0.5),
    ],
)
def test_schedules_resume_from_their_state(make: Any) -> None:
    whole = make(two_groups())
    run(whole, 0, 11)
    resumed = make(two_groups())
    resumed.load_state_dict(whole.state_dict())

    assert run(resumed, 11, 25) == run(whole, 11, 25)
    assert resumed.last_epoch == 25


@pytest.mark.parametrize(
    "make",
    [
        lambda o, n: lr_scheduler.OneCycleLR(o, [0.5, 0.7], 30, last_epoch=n),
        lambda o, n: lr_scheduler.CyclicLR(o, 0.01, 0.5, 4, 3, last_epoch=n),
    ],
)
def test_schedules_resume_from_a_step(make: Any) -> None:
    optimizer = two_groups()
    whole = make(optimizer, -1)
    run(whole, 0, 8)
    resumed = two_groups()
    resumed.load_state_dict(optimizer.state_dict())

    assert run(make(resumed, 8 - 1), 8, 25) == run(whole, 8, 25)
    with pytest.raises(KeyError, match="initial_lr"):
        make(two_groups(), 7)


def test_one_cycle_ends_among_others() -> None:
    optimizer = two_groups()
    parts = [
        lr_scheduler.LinearLR(optimizer, total_iters=2),
        lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=3),
    ]
    schedule = lr_scheduler.SequentialLR(optimizer, parts, [2])
    for _ in range(5):
        schedule.step()
    rates = schedule.get_last_lr()

    with pytest.raises(ValueError, match="before step 6"):
        schedule.step()
    with pytest.raises(ValueError, match="before step 9"):
        schedule.load_state_dict({"last_epoch": 9, "base_lrs": schedule.base_lrs})

    assert (schedule.last_epoch, schedule.get_last_lr()) == (5, rates)


def test_one_cycle_ends() -> None:
    optimizer = two_groups()
    schedule = lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=3)
    for _ in range(3):
        schedule.step()
    before = [dict(group) for group in optimizer.param_groups]

    with pytest.raises(ValueError, match="before step 4"):
        schedule.step()

    assert [{**g, "params": None} for g in optimizer.param_groups] == [
        {**g, "params": None} for g in before
    ]
    assert schedule.last_epoch == 3


def test_a_phase_of_length_zero_ends_at_once() -> None:
    optimizer = two_groups()

    lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=10, pct_start=0.1)

    assert optimizer.param_groups[0]["lr"] == 0.5


@pytest.mark.parametrize("sparse", [False, True])
def test_parameters_follow_a_momentum_that_cycles(sparse: bool) -> None:
    torch = pytest.importorskip("torch")
    p = nn.Parameter(ag.ones(3, 2, dtype="float64"))
    q = torch.nn.Parameter(torch.ones(3, 2, dtype=torch.float64))
    ours, peer = optim.SGD([p], lr=0.1), torch.optim.SGD([q], lr=0.1)
    schedules = [
        module.OneCycleLR(optimizer, 0.3, total_steps=40)
        for module, optimizer in ((lr_scheduler, ours), (torch.optim.lr_scheduler, peer))
    ]
    rng = np.random.default_rng(0)

    for _ in range(40):
        grad = rng.normal(size=(3, 2))
        p.grad = ag.RowGrad(np.arange(3), grad, 3) if sparse else ag.tensor(grad)
        q.grad = torch.tensor(grad)
        ours.step()
        peer.step()
        for schedule in schedules:
            schedule.step()

    np.testing.assert_allclose(p.data, q.detach().numpy(), rtol=1e-12)


def test_a_cycle_may_follow_a_warm_up() -> None:
    torch = pytest.importorskip("torch")
    found = []
    for module, optimizer in (
        (lr_scheduler, two_groups("Adam")),
        (
            torch.optim.lr_scheduler,
            torch.optim.Adam(
                [{"params": [torch.nn.Parameter(torch.ones(1))], "lr": lr} for lr in (0.1, 0.7)]
            ),
        ),
    ):
        warm = module.LinearLR(optimizer, start_factor=0.1, total_iters=4)
        cycle = module.OneCycleLR(optimizer, 0.5, total_steps=20)
        schedule = module.SequentialLR(optimizer, [warm, cycle], milestones=[5])
        seen = []
        for _ in range(15):
            optimizer.step()
            schedule.step()
            seen += [n for g in optimizer.param_groups for n in (g["lr"], *g["betas"])]
        found.append(seen)

    assert found[0] == pytest.approx(found[1], rel=1e-9)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda o: lr_scheduler.OneCycleLR(o, 0.1), "total_steps"),
        (lambda o: lr_scheduler.OneCycleLR(o, 0.1, epochs=3), "steps_per_epoch"),
        (lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=0), "total_steps is 0"),
        (lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=2.5), "total_steps is 2.5"),
        (lambda o: lr_scheduler.OneCycleLR(o, 0.1, epochs=-1, steps_per_epoch=2), "epochs is -1"),
        (lambda o: lr_scheduler.OneCycleLR(o, 0.1, 9, pct_start=1.5), "pct_start"),
        (lambda o: lr_scheduler.OneCycleLR(o, 0.1, 9, anneal_strategy="up"), "anneal_strategy"),
        (lambda o: lr_scheduler.OneCycleLR(o, 0.1, 9, div_factor=0), "divisors"),
        (lambda o: lr_scheduler.OneCycleLR(o, [0.1], 9), "max_lr has 1 values for 2"),
        (lambda o: lr_scheduler.CyclicLR(o, 0.1, [0.1], 9), "max_lr has 1 values for 2"),
        (lambda o: lr_scheduler.CyclicLR(o, 0.1, 0.2, 0), "no form"),
        (lambda o: lr_scheduler.CyclicLR(o, 0.1, 0.2, mode="square"), "no mode"),
        (lambda o: lr_scheduler.CyclicLR(o, 0.1, 0.2, scale_mode="square"), "scale_mode"),
        (lambda o: lr_scheduler.CyclicLR(two_groups("Adagrad"), 0.1, 0.2), "Adagrad has neither"),
        (lambda o: lr_scheduler.OneCycleLR(two_groups("Adagrad"), 0.1, 9), "cycle_momentum=False"),
        (lambda o: lr_scheduler.ReduceLROnPlateau(o, factor=1.0), "factor"),
        (lambda o: lr_scheduler.ReduceLROnPlateau(o, mode="up"), "mode"),
        (lambda o: lr_scheduler.ReduceLROnPlateau(o, threshold_mode="up"), "threshold_mode"),
        (lambda o: lr_scheduler.ReduceLROnPlateau(o, min_lr=[0.1]), "min_lr"),
        (
            lambda o: lr_scheduler.SequentialLR(o, [lr_scheduler.ReduceLROnPlateau(o)], []),
            "metric",
        ),
    ],
)
def test_bad_arguments_are_named_and_change_nothing(make: Any, match: str) -> None:
    optimizer = two_groups(momentum=0.3)

    with pytest.raises(ValueError, match=match):
        make(optimizer)

    options = [(g["lr"], g["momentum"]) for g in optimizer.param_groups]
    assert options == [(0.1, 0.3), (0.7, 0.3)]

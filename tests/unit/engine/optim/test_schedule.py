from typing import Any

import pytest

from gradmesh.engine import autograd as ag
from gradmesh.engine import nn, optim

SCHEDULES: list[tuple[str, dict[str, Any]]] = [
    ("ConstantLR", {"factor": 0.5, "total_iters": 3}),
    ("LinearLR", {"start_factor": 0.1, "total_iters": 6}),
    ("CosineAnnealingLR", {"T_max": 10, "eta_min": 0.01}),
    ("StepLR", {"step_size": 3, "gamma": 0.5}),
    ("MultiStepLR", {"milestones": [2, 7], "gamma": 0.5}),
    ("ExponentialLR", {"gamma": 0.9}),
    ("LambdaLR", {"lr_lambda": lambda step: 1 / (1 + step)}),
]

CYCLES: list[tuple[str, dict[str, Any]]] = [
    ("OneCycleLR", {"max_lr": 0.5, "total_steps": 300}),
    ("OneCycleLR", {"max_lr": [0.5, 0.3], "epochs": 4, "steps_per_epoch": 75, "pct_start": 0.41}),
    ("OneCycleLR", {"max_lr": 0.5, "total_steps": 300, "anneal_strategy": "linear"}),
    ("OneCycleLR", {"max_lr": 0.5, "total_steps": 301, "three_phase": True, "pct_start": 0.2}),
    ("OneCycleLR", {"max_lr": 0.5, "total_steps": 300, "div_factor": 3.0, "final_div_factor": 7.0}),
    ("OneCycleLR", {"max_lr": 0.5, "total_steps": 300, "base_momentum": [0.1, 0.2]}),
    ("OneCycleLR", {"max_lr": 0.5, "total_steps": 300, "cycle_momentum": False, "pct_start": 0.0}),
    ("CyclicLR", {"base_lr": 0.01, "max_lr": 0.5, "step_size_up": 17}),
    ("CyclicLR", {"base_lr": [0.01, 0.1], "max_lr": [0.5, 1.0], "step_size_up": 7}),
    ("CyclicLR", {"base_lr": 0.01, "max_lr": 0.5, "step_size_up": 7, "step_size_down": 20}),
    ("CyclicLR", {"base_lr": 0.01, "max_lr": 0.5, "step_size_up": 20, "mode": "triangular2"}),
    (
        "CyclicLR",
        {"base_lr": 0.01, "max_lr": 0.5, "step_size_up": 9, "mode": "exp_range", "gamma": 0.99},
    ),
    (
        "CyclicLR",
        {"base_lr": 0.01, "max_lr": 0.5, "step_size_up": 9, "scale_fn": lambda n: 1 / n},
    ),
    (
        "CyclicLR",
        {
            "base_lr": 0.01,
            "max_lr": 0.5,
            "step_size_up": 9,
            "cycle_momentum": False,
            "scale_fn": lambda step: 1 / (1 + step),
            "scale_mode": "iterations",
        },
    ),
    ("CyclicLR", {"base_lr": 0.01, "max_lr": 0.5, "step_size_up": 9, "max_momentum": 0.99}),
]


def ours(name: str = "SGD") -> Any:
    groups = [{"params": [nn.Parameter(ag.ones(1))], "lr": lr} for lr in (0.1, 0.7)]
    return getattr(optim, name)(groups, lr=0.1)


def peers(torch: Any, name: str = "SGD") -> Any:
    groups = [{"params": [torch.nn.Parameter(torch.ones(1))], "lr": lr} for lr in (0.1, 0.7)]
    return getattr(torch.optim, name)(groups, lr=0.1)


@pytest.mark.parametrize(("name", "options"), SCHEDULES)
def test_rates_equal_torch(name: str, options: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    optimizer, peer = ours(), peers(torch)
    schedule = getattr(optim.lr_scheduler, name)(optimizer, **options)
    expected = getattr(torch.optim.lr_scheduler, name)(peer, **options)

    for _ in range(15):
        assert schedule.get_last_lr() == pytest.approx(expected.get_last_lr(), rel=1e-9)
        optimizer.step()
        peer.step()
        schedule.step()
        expected.step()


def options_of(optimizer: Any) -> list[Any]:
    """Rates, and momentum or betas, of all groups."""
    groups = optimizer.param_groups
    return [n for g in groups for n in (g["lr"], *g.get("betas", (g.get("momentum"),)))]


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
@pytest.mark.parametrize(("name", "options"), CYCLES)
def test_cycles_of_rates_and_momentum_equal_torch(
    name: str, options: dict[str, Any], kind: str
) -> None:
    torch = pytest.importorskip("torch")
    optimizer, peer = ours(kind), peers(torch, kind)
    schedule = getattr(optim.lr_scheduler, name)(optimizer, **options)
    expected = getattr(torch.optim.lr_scheduler, name)(peer, **options)
    peer.step()

    for _ in range(300):
        assert options_of(optimizer) == pytest.approx(options_of(peer), rel=1e-9)
        schedule.step()
        expected.step()
    assert options_of(optimizer) == pytest.approx(options_of(peer), rel=1e-9)


def test_warm_up_then_cosine_equals_torch() -> None:
    torch = pytest.importorskip("torch")

    def build(module: Any, optimizer: Any) -> Any:
        warm = module.LinearLR(optimizer, start_factor=0.1, total_iters=4)
        cosine = module.CosineAnnealingLR(optimizer, T_max=8)
        return module.SequentialLR(optimizer, [warm, cosine], milestones=[4])

    optimizer, peer = ours(), peers(torch)
    schedule = build(optim.lr_scheduler, optimizer)
    expected = build(torch.optim.lr_scheduler, peer)

    for _ in range(12):
        assert schedule.get_last_lr() == pytest.approx(expected.get_last_lr(), rel=1e-9)
        peer.step()
        schedule.step()
        expected.step()


def test_schedule_resumes_from_its_state() -> None:
    first, second = ours(), ours()
    schedule = optim.lr_scheduler.CosineAnnealingLR(first, T_max=10)
    for _ in range(4):
        schedule.step()
    resumed = optim.lr_scheduler.CosineAnnealingLR(second, T_max=10)

    resumed.load_state_dict(schedule.state_dict())

    assert resumed.get_last_lr() == schedule.get_last_lr()
    assert resumed.last_epoch == 4

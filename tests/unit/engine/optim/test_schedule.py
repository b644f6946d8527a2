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


def ours() -> Any:
    groups = [{"params": [nn.Parameter(ag.ones(1))], "lr": lr} for lr in (0.1, 0.7)]
    return optim.SGD(groups, lr=0.1)


def peers(torch: Any) -> Any:
    groups = [{"params": [torch.nn.Parameter(torch.ones(1))], "lr": lr} for lr in (0.1, 0.7)]
    return torch.optim.SGD(groups, lr=0.1)


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

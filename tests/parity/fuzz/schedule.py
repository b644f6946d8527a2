"""Learning-rate schedules: random options, thirty steps, the rates of every group at every step."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable
from typing import Any

import gradmesh as gm
from tests.parity.fuzz.library import OURS, TORCH

STEPS = 30


def _factor(step: int) -> float:
    return 1 / (1 + step)


def _root(step: int) -> float:
    return 0.9**step


FUNCTIONS: dict[str, Callable[[int], float]] = {"_factor": _factor, "_root": _root}


# What to draw for each schedule: a function of the generator.
OPTIONS: dict[str, Callable[[random.Random], dict[str, Any]]] = {
    "ConstantLR": lambda r: {"factor": r.choice((0.5, 0.1, 1.0)), "total_iters": r.randint(1, 8)},
    "LinearLR": lambda r: {
        "start_factor": r.choice((0.1, 0.5, 1.0)),
        "end_factor": r.choice((1.0, 0.2, 0.0)),
        "total_iters": r.randint(1, 9),
    },
    "CosineAnnealingLR": lambda r: {"T_max": r.randint(1, 12), "eta_min": r.choice((0.0, 0.01))},
    "CosineAnnealingWarmRestarts": lambda r: {"T_0": r.randint(1, 6), "T_mult": r.randint(1, 2)},
    "StepLR": lambda r: {"step_size": r.randint(1, 7), "gamma": r.choice((0.1, 0.5))},
    "MultiStepLR": lambda r: {
        "milestones": [r.randint(0, 20) for _ in range(r.randint(0, 4))],
        "gamma": r.choice((0.1, 0.5)),
    },
    "ExponentialLR": lambda r: {"gamma": r.choice((0.9, 0.5, 1.0))},
    "PolynomialLR": lambda r: {"total_iters": r.randint(1, 9), "power": r.choice((1.0, 2.0))},
    "LambdaLR": lambda r: {"lr_lambda": r.choice(sorted(FUNCTIONS))},
    "MultiplicativeLR": lambda r: {"lr_lambda": r.choice(sorted(FUNCTIONS))},
    "OneCycleLR": lambda r: {
        "max_lr": r.choice((0.1, 1.0)),
        "total_steps": r.randint(STEPS + 1, 50),
        "pct_start": r.choice((0.3, 0.1)),
        "anneal_strategy": r.choice(("cos", "linear")),
        "div_factor": r.choice((25.0, 4.0)),
        "three_phase": r.random() < 0.3,
    },
    "CyclicLR": lambda r: {
        "base_lr": 0.01,
        "max_lr": r.choice((0.1, 1.0)),
        "step_size_up": r.randint(1, 6),
        "mode": r.choice(("triangular", "triangular2", "exp_range")),
        "gamma": r.choice((1.0, 0.9)),
        "cycle_momentum": r.random() < 0.5,
    },
    "ReduceLROnPlateau": lambda r: {
        "mode": r.choice(("min", "max")),
        "factor": r.choice((0.1, 0.5)),
        "patience": r.randint(0, 4),
        "threshold": r.choice((1e-4, 0.1)),
        "threshold_mode": r.choice(("rel", "abs")),
        "cooldown": r.randint(0, 2),
        "min_lr": r.choice((0, 0.05)),
    },
}


@dataclasses.dataclass(frozen=True)
class ScheduleCase:
    """One or several schedules in a row, with the steps at which the next takes over."""

    parts: tuple[tuple[str, dict[str, Any]], ...]
    milestones: tuple[int, ...]
    seed: int
    steps: int = STEPS

    def covers(self) -> str:
        """Return the public name that the case covers."""
        return f"lr_scheduler.{'SequentialLR' if self.milestones else self.parts[0][0]}"


def draw_schedule(seed: int) -> ScheduleCase:
    """Return the case of a seed."""
    rng = random.Random(seed)
    names = [n for n in OPTIONS if hasattr(gm.optim.lr_scheduler, n)]
    simple = ["ConstantLR", "LinearLR", "CosineAnnealingLR", "StepLR", "ExponentialLR", "LambdaLR"]
    if rng.random() < 0.25:
        count = rng.randint(2, 3)
        parts = tuple([(n, OPTIONS[n](rng)) for n in rng.sample(simple, count)])
        milestones = tuple(sorted(rng.sample(range(1, 20), count - 1)))
        return ScheduleCase(parts, milestones, seed)
    name = rng.choice(names)
    return ScheduleCase(((name, OPTIONS[name](rng)),), (), seed)


def rates(case: ScheduleCase, library: Any) -> Any:
    """Return the rates and momenta of every group after every step, or the error."""
    try:
        return _rates(case, library)
    except Exception as error:
        return error


def _rates(case: ScheduleCase, library: Any) -> list[Any]:
    optim, schedules = library.t.optim, library.t.optim.lr_scheduler
    params = [library.n.Parameter(library.t.ones(1)) for _ in range(2)]
    groups = [{"params": [p], "lr": lr} for p, lr in zip(params, (0.1, 0.7), strict=True)]
    optimizer = optim.SGD(groups, lr=0.1, momentum=0.9)
    made = [_part(schedules, optimizer, name, options) for name, options in case.parts]
    schedule = made[0]
    if case.milestones:
        schedule = schedules.SequentialLR(optimizer, made, milestones=list(case.milestones))
    metrics = random.Random(case.seed)
    found = []
    for _ in range(case.steps):
        found.append([(g["lr"], g["momentum"]) for g in optimizer.param_groups])
        optimizer.step()
        if case.parts[0][0] == "ReduceLROnPlateau":
            schedule.step(metrics.choice((1.0, 0.9, 0.95, 2.0)))
        else:
            schedule.step()
    return found


def _part(schedules: Any, optimizer: Any, name: str, options: dict[str, Any]) -> Any:
    given = {k: FUNCTIONS[v] if k == "lr_lambda" else v for k, v in options.items()}
    return getattr(schedules, name)(optimizer, **given)


def difference(case: ScheduleCase) -> str | None:
    """Return the difference between the two libraries, or None."""
    mine, theirs = rates(case, OURS), rates(case, TORCH)
    if isinstance(mine, Exception) or isinstance(theirs, Exception):
        both = isinstance(mine, Exception) and isinstance(theirs, Exception)
        return None if both else f"raise\n  ours:  {mine!r}\n  torch: {theirs!r}"
    for step, (ours, peers) in enumerate(zip(mine, theirs, strict=True)):
        flat = zip((v for g in ours for v in g), (v for g in peers for v in g), strict=True)
        # Torch multiplies step by step where ours is a formula: a rate that falls to 0 keeps dust.
        if not all(math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12) for a, b in flat):
            return f"rate after step {step}\n  ours:  {ours}\n  torch: {peers}"
    return None


def shrunk(case: ScheduleCase) -> ScheduleCase:
    """Return the case with as few steps as still differ."""
    for steps in range(1, case.steps):
        smaller = dataclasses.replace(case, steps=steps)
        if difference(smaller) is not None:
            return smaller
    return case


def program(case: ScheduleCase) -> str:
    """Return a program that shows the case in both libraries."""
    return (
        "from tests.parity.fuzz.library import OURS, TORCH\n"
        "from tests.parity.fuzz.schedule import ScheduleCase, rates\n\n"
        f"case = {case!r}\n"
        "print(rates(case, OURS), rates(case, TORCH), sep='\\n')"
    )

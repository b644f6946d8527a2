"""Schedules of a fixed shape: constant, linear, cosine, steps, exponential; and their sequence."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any, final

from gradmesh.engine.optim.lr_scheduler.plateau import ReduceLROnPlateau
from gradmesh.engine.optim.lr_scheduler.scheduler import LRScheduler, Scheduled


@final
class ConstantLR(LRScheduler):
    """Multiply the rate by a factor until a step.

    Args:
        optimizer: Whose groups are scheduled.
        factor: The factor.
        total_iters: After how many steps it ends.
    """

    def __init__(self, optimizer: Scheduled, factor: float = 1 / 3, total_iters: int = 5) -> None:
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer)

    def rate(self, base: float, step: int, group: int) -> float:
        """Return the rate after a number of steps."""
        return base * self.factor if step < self.total_iters else base


@final
class LinearLR(LRScheduler):
    """Change a factor of the rate linearly: a warm-up, or a decay.

    Args:
        optimizer: Whose groups are scheduled.
        start_factor: Factor at the first step.
        end_factor: Factor from `total_iters` on.
        total_iters: How many steps the line takes.
    """

    def __init__(
        self,
        optimizer: Scheduled,
        start_factor: float = 1 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
    ) -> None:
        if total_iters < 1:
            raise ValueError(f"total_iters is {total_iters}; a line needs one step or more")
        self.start_factor, self.end_factor = start_factor, end_factor
        self.total_iters = total_iters
        super().__init__(optimizer)

    def rate(self, base: float, step: int, group: int) -> float:
        """Return the rate after a number of steps."""
        share = min(step, self.total_iters) / self.total_iters
        return base * (self.start_factor + (self.end_factor - self.start_factor) * share)


@final
class CosineAnnealingLR(LRScheduler):
    """Decrease the rate along half a cosine wave.

    Args:
        optimizer: Whose groups are scheduled.
        T_max: Steps from the base rate to the lowest.
        eta_min: The lowest rate.
    """

    def __init__(self, optimizer: Scheduled, T_max: int, eta_min: float = 0.0) -> None:  # noqa: N803
        self.t_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer)

    def rate(self, base: float, step: int, group: int) -> float:
        """Return the rate after a number of steps."""
        wave = (1 + math.cos(math.pi * step / self.t_max)) / 2
        return self.eta_min + (base - self.eta_min) * wave


@final
class StepLR(LRScheduler):
    """Multiply the rate by gamma every `step_size` steps.

    Args:
        optimizer: Whose groups are scheduled.
        step_size: Steps between two falls.
        gamma: The factor of a fall.
    """

    def __init__(self, optimizer: Scheduled, step_size: int, gamma: float = 0.1) -> None:
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer)

    def rate(self, base: float, step: int, group: int) -> float:
        """Return the rate after a number of steps."""
        return base * self.gamma ** (step // self.step_size)


@final
class MultiStepLR(LRScheduler):
    """Multiply the rate by gamma at given steps.

    Args:
        optimizer: Whose groups are scheduled.
        milestones: The steps.
        gamma: The factor of a fall.
    """

    def __init__(self, optimizer: Scheduled, milestones: Sequence[int], gamma: float = 0.1) -> None:
        self.milestones, self.gamma = sorted(milestones), gamma
        super().__init__(optimizer)

    def rate(self, base: float, step: int, group: int) -> float:
        """Return the rate after a number of steps."""
        return base * self.gamma ** bisect_right(self.milestones, step)


@final
class ExponentialLR(LRScheduler):
    """Multiply the rate by gamma each step.

    Args:
        optimizer: Whose groups are scheduled.
        gamma: The factor.
    """

    def __init__(self, optimizer: Scheduled, gamma: float) -> None:
        self.gamma = gamma
        super().__init__(optimizer)

    def rate(self, base: float, step: int, group: int) -> float:
        """Return the rate after a number of steps."""
        return base * self.gamma**step


@final
class LambdaLR(LRScheduler):
    """Multiply the rate by a function of the step.

    Args:
        optimizer: Whose groups are scheduled.
        lr_lambda: The function, or one per group.
    """

    def __init__(
        self,
        optimizer: Scheduled,
        lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]],
    ) -> None:
        count = len(optimizer.param_groups)
        self.lambdas = [lr_lambda] * count if callable(lr_lambda) else list(lr_lambda)
        if len(self.lambdas) != count:
            raise ValueError(f"{len(self.lambdas)} functions for {count} parameter groups")
        super().__init__(optimizer)

    def rate(self, base: float, step: int, group: int) -> float:
        """Return the rate after a number of steps."""
        return base * self.lambdas[group](step)


@final
class SequentialLR(LRScheduler):
    """Run several schedules one after another, each from its own start.

    Args:
        optimizer: Whose groups are scheduled.
        schedulers: The schedules, made for the same optimizer.
        milestones: The steps at which the next one takes over.
    """

    def __init__(
        self, optimizer: Scheduled, schedulers: Sequence[LRScheduler], milestones: Sequence[int]
    ) -> None:
        if len(milestones) != len(schedulers) - 1:
            raise ValueError(f"{len(milestones)} milestones for {len(schedulers)} schedules")
        if any(isinstance(schedule, ReduceLROnPlateau) for schedule in schedulers):
            raise ValueError(
                "ReduceLROnPlateau needs a metric each step and cannot be part of a sequence"
            )
        self.schedulers, self.milestones = list(schedulers), list(milestones)
        super().__init__(optimizer)

    def rate(self, base: float, step: int, group: int) -> float:
        """Return the rate after a number of steps."""
        schedule, own = self._place(step)
        return schedule.rate(base, own, group)

    def is_over(self, step: int) -> bool:
        """Return whether the schedule of a step ends before it."""
        schedule, own = self._place(step)
        return schedule.is_over(own)

    def set_group(self, group: dict[str, Any], base: float, step: int, number: int) -> None:
        """Set what the schedule of a step sets."""
        schedule, own = self._place(step)
        schedule.set_group(group, base, own, number)

    def _place(self, step: int) -> tuple[LRScheduler, int]:
        """Return the schedule of a step, and how many steps it has gone."""
        position = bisect_right(self.milestones, step)
        return self.schedulers[position], step - (self.milestones[position - 1] if position else 0)

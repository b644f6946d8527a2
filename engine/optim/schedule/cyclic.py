"""CyclicLR: learning rates that go up and down between two bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, final

from gradmesh.engine.optim.schedule.groups import CycledMomentum, per_group
from gradmesh.engine.optim.schedule.scheduler import LRScheduler, Scheduled

_MODES: dict[str, Callable[[float, float], float]] = {
    "triangular": lambda gamma, count: 1.0,
    "triangular2": lambda gamma, count: 1 / 2.0 ** (count - 1),
    "exp_range": lambda gamma, count: math.pow(gamma, count),
}


@final
class CyclicLR(LRScheduler):
    """Go in a line from base_lr to max_lr and back, again and again.

    Args:
        optimizer: Whose groups are scheduled; their own rates are not used.
        base_lr: The lower bound, for all groups or for each.
        max_lr: The upper bound.
        step_size_up: Steps from the lower bound to the upper one.
        step_size_down: Steps back; as many as up if None.
        mode: What the height of a cycle is multiplied by: "triangular", 1; "triangular2", half of
            that of the cycle before; "exp_range", gamma to the power of the step.
        gamma: Of mode "exp_range".
        scale_fn: A function in place of the mode's.
        scale_mode: What scale_fn takes: "cycle", its number from 1, or "iterations", the step.
        cycle_momentum: Whether momentum, or the first beta, goes the opposite way.
        base_momentum: Its lower bound.
        max_momentum: Its upper bound.
        last_epoch: The step to go on from; -1 begins.

    Raises:
        ValueError: If an argument is out of its range, or there is no momentum to cycle.
    """

    def __init__(
        self,
        optimizer: Scheduled,
        base_lr: float | Sequence[float],
        max_lr: float | Sequence[float],
        step_size_up: float = 2000,
        step_size_down: float | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None,
        scale_mode: str = "cycle",
        cycle_momentum: bool = True,
        base_momentum: float | Sequence[float] = 0.8,
        max_momentum: float | Sequence[float] = 0.9,
        last_epoch: int = -1,
    ) -> None:
        down = step_size_up if step_size_down is None else step_size_down
        if not (step_size_up > 0 and down >= 0):
            raise ValueError(f"a cycle of {step_size_up} steps up and {down} down has no form")
        if mode not in _MODES and scale_fn is None:
            raise ValueError(f"no mode {mode!r}; there are {', '.join(_MODES)}, or give scale_fn")
        if scale_mode not in ("cycle", "iterations"):
            raise ValueError(f"scale_mode is {scale_mode!r}; use 'cycle' or 'iterations'")
        self.lowest = per_group("base_lr", optimizer, base_lr)
        self.highest = per_group("max_lr", optimizer, max_lr)
        self.step_size_up, self.step_size_down = float(step_size_up), float(down)
        self.mode, self.gamma, self.scale_fn = mode, gamma, scale_fn
        self._by_cycle = scale_mode == "cycle" if scale_fn is not None else mode != "exp_range"
        self.momentum = None
        if cycle_momentum:
            self.momentum = CycledMomentum(optimizer, base_momentum, max_momentum)
        if last_epoch == -1:
            for group, lr in zip(optimizer.param_groups, self.lowest, strict=False):
                group["lr"] = lr
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float, step: int, group: int) -> float:
        """Return the rate after a number of steps."""
        low = self.lowest[group]
        return low + self._height(self.highest[group] - low, step)

    def set_group(self, group: dict[str, Any], base: float, step: int, number: int) -> None:
        """Set rate and momentum of a group."""
        super().set_group(group, base, step, number)
        if self.momentum is not None:
            high = self.momentum.highest[number]
            range_ = high - self.momentum.lowest[number]
            self.momentum.put(group, high - self._height(range_, step))

    def _height(self, range_: float, step: int) -> float:
        """Return how far above the lower bound a step is."""
        total = self.step_size_up + self.step_size_down
        cycle = math.floor(1 + step / total)
        share = 1.0 + step / total - cycle
        top = self.step_size_up / total
        height = range_ * (share / top if share <= top else (share - 1) / (top - 1))
        count = cycle if self._by_cycle else step
        if self.scale_fn is not None:
            return height * self.scale_fn(count)
        return height * _MODES[self.mode](self.gamma, count)

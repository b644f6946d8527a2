"""CyclicLR and OneCycleLR: learning rates that go up and down, and momentum that follows them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

from gradmesh.engine.optim.lr_scheduler.scheduler import LRScheduler, Scheduled


def per_group(name: str, optimizer: Scheduled, value: float | Sequence[float]) -> list[float]:
    """Return one number a group from one number or a list; a recipe counts as one group.

    Raises:
        ValueError: If a list has another length.
    """
    count = max(len(optimizer.param_groups), 1)
    if not isinstance(value, (list, tuple)):
        return [float(value)] * count  # type: ignore[arg-type]
    if len(value) != count:
        raise ValueError(f"{name} has {len(value)} values for {count} parameter groups")
    return [float(one) for one in value]


@final
class CycledMomentum:
    """Set the momentum of groups, or the first of their betas, between two bounds.

    Args:
        optimizer: Whose groups they are.
        lowest: The lower bound, for all groups or for each.
        highest: The upper bound.

    Raises:
        ValueError: If the optimizer has neither momentum nor betas.
    """

    def __init__(
        self,
        optimizer: Scheduled,
        lowest: float | Sequence[float],
        highest: float | Sequence[float],
    ) -> None:
        groups = optimizer.param_groups
        options = groups[0] if groups else getattr(optimizer, "defaults", {})
        if "momentum" not in options and "betas" not in options:
            raise ValueError(
                f"{type(optimizer).__name__} has neither momentum nor betas to cycle; "
                "pass cycle_momentum=False"
            )
        self._is_beta = "betas" in options
        self.lowest = per_group("base_momentum", optimizer, lowest)
        self.highest = per_group("max_momentum", optimizer, highest)

    def put(self, group: dict[str, Any], value: float) -> None:
        """Set the momentum of a group."""
        if self._is_beta:
            group["betas"] = (value, *group["betas"][1:])
        else:
            group["momentum"] = value


_MODES: dict[str, Callable[[float, float], float]] = {
    "triangular": lambda gamma, count: 1.0,
    "triangular2": lambda gamma, count: 1 / 2.0 ** (count - 1),
    "exp_range": lambda gamma, count: math.pow(gamma, count),
}


@final
class CyclicLR(LRScheduler):
    """Move the rate linearly from base_lr to max_lr and back, in cycles.

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


class _Phase(NamedTuple):
    """End of a phase, and the names of its first and last rate and momentum."""

    end: float
    rates: tuple[str, str]
    momentums: tuple[str, str]


@final
class OneCycleLR(LRScheduler):
    """Raise the rate from max_lr / div_factor to max_lr, then anneal it to nearly 0, over a run.

    Args:
        optimizer: Whose groups are scheduled; their own rates are not used.
        max_lr: The peak, for all groups or for each.
        total_steps: Steps of the run; or give epochs and steps_per_epoch.
        epochs: Epochs of the run.
        steps_per_epoch: Steps of an epoch.
        pct_start: Share of the steps before the peak.
        anneal_strategy: "cos" or "linear".
        cycle_momentum: Whether momentum, or the first beta, goes the opposite way.
        base_momentum: Its lower bound, at the peak.
        max_momentum: Its upper bound.
        div_factor: The peak divided by the first rate.
        final_div_factor: The first rate divided by the last.
        three_phase: Go down to the first rate in as many steps as up, and then to the last one.
        last_epoch: The step to go on from; -1 begins.

    Raises:
        ValueError: If an argument is out of its range, or there is no momentum to cycle.
    """

    def __init__(
        self,
        optimizer: Scheduled,
        max_lr: float | Sequence[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: float | Sequence[float] = 0.85,
        max_momentum: float | Sequence[float] = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ) -> None:
        self.total_steps = _count(total_steps, epochs, steps_per_epoch)
        if not 0 <= pct_start <= 1:
            raise ValueError(f"pct_start is {pct_start}; it is a share, from 0 to 1")
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"anneal_strategy is {anneal_strategy!r}; use 'cos' or 'linear'")
        if not (div_factor > 0 and final_div_factor > 0):
            raise ValueError(f"divisors are above 0, not {div_factor} and {final_div_factor}")
        self.pct_start, self.anneal_strategy = pct_start, anneal_strategy
        self.div_factor, self.final_div_factor = div_factor, final_div_factor
        self.three_phase = bool(three_phase)
        self.highest = per_group("max_lr", optimizer, max_lr)
        self.momentum = None
        if cycle_momentum:
            self.momentum = CycledMomentum(optimizer, base_momentum, max_momentum)
        self._phases = _phases(self.total_steps, pct_start, self.three_phase)
        if last_epoch == -1:
            for group, peak in zip(optimizer.param_groups, self.highest, strict=False):
                group["initial_lr"] = peak / div_factor
        super().__init__(optimizer, last_epoch)

    def is_over(self, step: int) -> bool:
        """Return whether the run has fewer steps."""
        return step > self.total_steps

    def rate(self, base: float, step: int, group: int) -> float:
        """Return the rate after a number of steps."""
        phase, share = self._place(step)
        peak = self.highest[group]
        first = peak / self.div_factor
        rates = {"first": first, "peak": peak, "last": first / self.final_div_factor}
        return self._between(rates[phase.rates[0]], rates[phase.rates[1]], share)

    def set_group(self, group: dict[str, Any], base: float, step: int, number: int) -> None:
        """Set rate and momentum of a group."""
        super().set_group(group, base, step, number)
        if self.momentum is not None:
            phase, share = self._place(step)
            bounds = {"high": self.momentum.highest[number], "low": self.momentum.lowest[number]}
            start, end = (bounds[name] for name in phase.momentums)
            self.momentum.put(group, self._between(start, end, share))

    def _place(self, step: int) -> tuple[_Phase, float]:
        """Return the phase of a step, and which share of it is over."""
        start = 0.0
        for phase in self._phases:
            if step <= phase.end or phase is self._phases[-1]:
                # A phase of no length is over where it begins.
                length = phase.end - start
                return phase, (step - start) / length if length else 1.0
            start = phase.end
        raise AssertionError("the last phase takes every step")

    def _between(self, start: float, end: float, share: float) -> float:
        if self.anneal_strategy == "linear":
            return (end - start) * share + start
        return end + (start - end) / 2.0 * (math.cos(math.pi * share) + 1)


def _phases(steps: int, share: float, three: bool) -> list[_Phase]:
    up = _Phase(float(share * steps) - 1, ("first", "peak"), ("high", "low"))
    if not three:
        return [up, _Phase(steps - 1, ("peak", "last"), ("low", "high"))]
    return [
        up,
        _Phase(float(2 * share * steps) - 2, ("peak", "first"), ("low", "high")),
        _Phase(steps - 1, ("first", "last"), ("high", "high")),
    ]


def _count(total: int | None, epochs: int | None, each: int | None) -> int:
    """Return the steps of a run."""
    given = {"total_steps": total} if total is not None else {}
    if total is None and epochs is not None and each is not None:
        given = {"epochs": epochs, "steps_per_epoch": each}
    if not given:
        raise ValueError("give total_steps, or epochs and steps_per_epoch")
    for name, value in given.items():
        if not isinstance(value, int) or value <= 0:
            raise ValueError(f"{name} is {value!r}; it is a whole number from 1")
    return math.prod(given.values())

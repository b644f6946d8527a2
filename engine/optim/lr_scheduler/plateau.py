"""ReduceLROnPlateau: learning rates that fall when a metric stops getting better."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, SupportsFloat, final

from gradmesh.engine.optim.lr_scheduler.scheduler import LRScheduler, Scheduled


@final
class ReduceLROnPlateau(LRScheduler):
    """Multiply the rates by a factor when a metric has not improved for a number of epochs.

    Args:
        optimizer: Whose groups are scheduled.
        mode: "min" if a lower metric is better, "max" if a higher one is.
        factor: The factor of a fall.
        patience: Epochs without improvement that are waited for.
        threshold: What counts as an improvement.
        threshold_mode: "rel": a share of the best metric; "abs": a difference.
        cooldown: Epochs after a fall that count neither way.
        min_lr: Below this no rate falls, for all groups or for each.
        eps: Falls by less than this are left out.

    Raises:
        ValueError: If an argument is out of its range.
    """

    def __init__(
        self,
        optimizer: Scheduled,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float | Sequence[float] = 0,
        eps: float = 1e-8,
    ) -> None:
        if not factor < 1:
            raise ValueError(f"factor is {factor}; rates fall by a factor below 1")
        if mode not in ("min", "max"):
            raise ValueError(f"mode is {mode!r}; use 'min' or 'max'")
        if threshold_mode not in ("rel", "abs"):
            raise ValueError(f"threshold_mode is {threshold_mode!r}; use 'rel' or 'abs'")
        groups = len(optimizer.param_groups)
        if isinstance(min_lr, (list, tuple)) and len(min_lr) != groups:
            raise ValueError(f"min_lr has {len(min_lr)} values for {groups} parameter groups")
        self.mode, self.factor, self.patience = mode, factor, patience
        self.threshold, self.threshold_mode = threshold, threshold_mode
        self.cooldown, self.min_lr, self.eps = cooldown, min_lr, eps
        self.best = math.inf if mode == "min" else -math.inf
        self.cooldown_counter = self.num_bad_epochs = 0
        super().__init__(optimizer)

    @property
    def in_cooldown(self) -> bool:
        """Return whether bad epochs are not counted for now."""
        return self.cooldown_counter > 0

    def rate(self, base: float, step: int, group: int) -> float:
        """Refuse: the rate follows from metrics, not from the number of steps.

        Raises:
            TypeError: Always.
        """
        raise TypeError("ReduceLROnPlateau follows a metric; it has no rate by step")

    def set_group(self, group: dict[str, Any], base: float, step: int, number: int) -> None:
        """Leave a group as it is: only metrics change it."""

    def step(self, metrics: SupportsFloat) -> None:  # type: ignore[override]
        """Count one epoch and its metric; lower the rates after too many without improvement."""
        current = float(metrics)
        self.last_epoch += 1
        if self._is_better(current):
            self.best, self.num_bad_epochs = current, 0
        else:
            self.num_bad_epochs += 1
        if self.in_cooldown:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self._reduce()
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs."""
        return {
            **super().state_dict(),
            "best": self.best,
            "cooldown_counter": self.cooldown_counter,
            "num_bad_epochs": self.num_bad_epochs,
            "lrs": self.get_last_lr(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to the epoch of a saved state.

        Raises:
            ValueError: If it is of another number of groups; nothing is changed then.
        """
        groups = self.optimizer.param_groups
        if len(state["lrs"]) != len(groups):
            raise ValueError(f"rates of {len(state['lrs'])} groups for {len(groups)}")
        super().load_state_dict(state)
        self.best = float(state["best"])
        self.cooldown_counter = int(state["cooldown_counter"])
        self.num_bad_epochs = int(state["num_bad_epochs"])
        for group, lr in zip(groups, state["lrs"], strict=True):
            group["lr"] = lr

    def _is_better(self, metric: float) -> bool:
        if self.threshold_mode == "rel":
            margin = 1.0 - self.threshold if self.mode == "min" else 1.0 + self.threshold
            bar = self.best * margin
        else:
            bar = self.best + (-self.threshold if self.mode == "min" else self.threshold)
        return metric < bar if self.mode == "min" else metric > bar

    def _reduce(self) -> None:
        groups = self.optimizer.param_groups
        lowest = (
            self.min_lr if isinstance(self.min_lr, (list, tuple)) else [self.min_lr] * len(groups)
        )
        if len(lowest) != len(groups):
            raise ValueError(f"min_lr has {len(lowest)} values for {len(groups)} parameter groups")
        for group, least in zip(groups, lowest, strict=True):
            old = float(group["lr"])
            new = max(old * self.factor, least)
            if old - new > self.eps:
                group["lr"] = new

"""Schedules: the learning rate as a function of the step, in closed form.

Closed form means a resumed run needs the step number and nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol


class Scheduled(Protocol):
    """An optimizer whose learning rates can be set, local or distributed."""

    param_groups: list[dict[str, Any]]


class LRScheduler(ABC):
    """Base class of schedules: set learning rates from the number of steps taken.

    Args:
        optimizer: Whose groups are scheduled; their learning rates now are the base.
        last_epoch: The step to resume from, with `initial_lr` in each group; -1 starts.

    Raises:
        KeyError: If the schedule resumes and a group has no `initial_lr`.
    """

    def __init__(self, optimizer: Scheduled, last_epoch: int = -1) -> None:
        self.optimizer = optimizer
        self.last_epoch = last_epoch + 1
        for number, group in enumerate(optimizer.param_groups):
            if last_epoch != -1 and "initial_lr" not in group:
                raise KeyError(f"parameter group {number} has no initial_lr to resume with")
            group.setdefault("initial_lr", group["lr"])
        self.base_lrs = [float(group["initial_lr"]) for group in optimizer.param_groups]
        self._set()

    @abstractmethod
    def rate(self, base: float, step: int, group: int) -> float:
        """Return the learning rate of a group after a number of steps."""

    def set_group(self, group: dict[str, Any], base: float, step: int, number: int) -> None:
        """Set what a group has after a number of steps."""
        group["lr"] = self.rate(base, step, number)

    def is_over(self, step: int) -> bool:
        """Return whether the schedule ends before a number of steps; most never end."""
        return False

    def step(self) -> None:
        """Count one step and set the learning rates that follow it.

        Raises:
            ValueError: If the schedule is over; nothing is changed then.
        """
        self._go_to(self.last_epoch + 1)

    def get_last_lr(self) -> list[float]:
        """Return the learning rates in force."""
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs."""
        return {"last_epoch": self.last_epoch, "base_lrs": list(self.base_lrs)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to the step of a saved state.

        Raises:
            ValueError: If the schedule ends before it; nothing is changed then.
        """
        self._check(int(state["last_epoch"]))
        self.base_lrs = list(state["base_lrs"])
        self._go_to(int(state["last_epoch"]))

    def _check(self, step: int) -> None:
        if self.is_over(step):
            raise ValueError(
                f"the schedule ends before step {step}; make it with the number of steps of the "
                "whole run"
            )

    def _go_to(self, step: int) -> None:
        self._check(step)
        self.last_epoch = step
        self._set()

    def _set(self) -> None:
        pairs = zip(self.optimizer.param_groups, self.base_lrs, strict=True)
        for number, (group, base) in enumerate(pairs):
            self.set_group(group, base, self.last_epoch, number)

"""Schedules: the learning rate as a function of the step, in closed form.

Closed form means a resumed run needs the step number and nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol


class Scheduled(Protocol):
    """Whose learning rates can be set: an optimizer, here or over many workers."""

    param_groups: list[dict[str, Any]]


class LRScheduler(ABC):
    """Set an optimizer's learning rates from the number of steps taken.

    Args:
        optimizer: Whose groups are scheduled; their learning rates now are the base.
    """

    def __init__(self, optimizer: Scheduled) -> None:
        self.optimizer = optimizer
        self.last_epoch = 0
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
        self.base_lrs = [float(group["initial_lr"]) for group in optimizer.param_groups]
        self._set()

    @abstractmethod
    def rate(self, base: float, step: int, group: int) -> float:
        """Return the learning rate of a group after a number of steps."""

    def step(self) -> None:
        """Count one step and set the learning rates that follow it."""
        self.last_epoch += 1
        self._set()

    def get_last_lr(self) -> list[float]:
        """Return the learning rates in force."""
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs."""
        return {"last_epoch": self.last_epoch, "base_lrs": list(self.base_lrs)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to the step of a saved state."""
        self.last_epoch = int(state["last_epoch"])
        self.base_lrs = list(state["base_lrs"])
        self._set()

    def _set(self) -> None:
        pairs = zip(self.optimizer.param_groups, self.base_lrs, strict=True)
        for number, (group, base) in enumerate(pairs):
            group["lr"] = self.rate(base, self.last_epoch, number)

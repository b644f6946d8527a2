"""Adamax: Adam with the largest gradient in place of the mean square."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, final

from gradmesh.engine import kernels
from gradmesh.engine.backend import Array
from gradmesh.engine.optim.adam import check_betas
from gradmesh.engine.optim.optimizer import Optimizer
from gradmesh.engine.optim.rule import Rule, Slot


@final
@dataclasses.dataclass(frozen=True)
class AdamaxRule(Rule):
    """Divide the running mean of gradients by their largest size so far."""

    name = "adamax"

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_betas(self.betas)

    def slots(self, dim: int) -> tuple[Slot, ...]:
        """Return the state kept per element."""
        return (Slot("exp_avg", dim), Slot("exp_inf", dim))

    def formula(
        self,
        xp: Any,
        weights: Array,
        slots: Mapping[str, Array],
        grads: Array,
        lr: float,
        step: int,
    ) -> None:
        """Change weights and slots in array operations."""
        change = grads + self.weight_decay * weights if self.weight_decay else grads
        mean, largest = slots["exp_avg"], slots["exp_inf"]
        mean += (change - mean) * (1 - self.betas[0])
        largest *= self.betas[1]
        xp.maximum(largest, xp.abs(change) + self.eps, out=largest)
        weights -= (lr / (1 - self.betas[0] ** step)) * mean / largest

    def kernel(self) -> Callable[..., None]:
        """Return the update as one compiled pass."""
        return kernels.update.adamax

    def numbers(self, kind: Any, lr: float, step: int) -> tuple[Any, ...]:
        """Return rate, decay, shares and eps."""
        first, second = self.betas
        plain = (lr / (1 - first**step), self.weight_decay, 1 - first, second, self.eps)
        return tuple([kind(number) for number in plain])

    @property
    def is_steady(self) -> bool:
        """Tell that the correction changes with every step."""
        return False


@final
class Adamax(Optimizer):
    """Do as Adam with the infinity norm.

    Args:
        params: Parameters or groups; leave out, or give the learning rate, for a recipe.
        lr: Learning rate.
        betas: Shares of mean and largest size kept each step.
        eps: Keeps the divisor away from 0.
        weight_decay: Multiple of the weights added to their gradients.
        maximize: Climb along the gradient instead of descending.
    """

    rule_class = AdamaxRule

    def __init__(
        self,
        params: Any = None,
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params, lr, betas=betas, eps=eps, weight_decay=weight_decay, maximize=maximize
        )

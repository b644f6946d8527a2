"""RAdam: Adam that uses the mean square only once enough steps have gone into it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, final

from gradmesh.engine import kernels
from gradmesh.engine.backend import Array
from gradmesh.engine.optim.adam import check_betas
from gradmesh.engine.optim.optimizer import Optimizer
from gradmesh.engine.optim.rule import Rule, Slot

# Effective number of steps in the mean square from which it is used.
_ENOUGH = 5.0


@final
@dataclasses.dataclass(frozen=True)
class RAdamRule(Rule):
    """Follow the running mean of gradients; divide it once the mean square is reliable."""

    name = "radam"

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled_weight_decay: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_betas(self.betas)

    def slots(self, dim: int) -> tuple[Slot, ...]:
        """Keep both means per element."""
        return Slot("exp_avg", dim), Slot("exp_avg_sq", dim)

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
        rate, decay, shrink, rectified = self._numbers(lr, step)
        weights *= shrink
        change = grads + decay * weights if decay else grads
        first, second = slots["exp_avg"], slots["exp_avg_sq"]
        first += (change - first) * (1 - self.betas[0])
        second *= self.betas[1]
        second += change * change * (1 - self.betas[1])
        weights -= rate * (first / (xp.sqrt(second) + self.eps) if rectified else first)

    def kernel(self) -> Callable[..., None]:
        """Return the update as one compiled pass."""
        return kernels.update.radam

    def numbers(self, kind: Any, lr: float, step: int) -> tuple[Any, ...]:
        """Return rate, decays, shares and eps, and whether to divide."""
        rate, decay, shrink, rectified = self._numbers(lr, step)
        first, second = self.betas
        plain = (rate, decay, shrink, 1 - first, second, 1 - second, self.eps)
        return (*[kind(number) for number in plain], rectified)

    @property
    def is_steady(self) -> bool:
        """Return False: corrections change with every step."""
        return False

    def _numbers(self, lr: float, step: int) -> tuple[float, float, float, bool]:
        decay = 0.0 if self.decoupled_weight_decay else self.weight_decay
        shrink = 1.0 - lr * self.weight_decay if self.decoupled_weight_decay else 1.0
        first, second = self.betas
        rate = lr / (1 - first**step)
        # Effective number of steps in the mean square, in the limit and now.
        most = 2 / (1 - second) - 1
        now = most - 2 * step * second**step / (1 - second**step)
        if now <= _ENOUGH:
            return rate, decay, shrink, False
        trust = (now - 4) * (now - 2) * most / ((most - 4) * (most - 2) * now)
        return rate * math.sqrt(trust * (1 - second**step)), decay, shrink, True


@final
class RAdam(Optimizer):
    """Implement RAdam: Adam with rectified first steps, without learning-rate warm-up.

    Args:
        params: Parameters or groups; leave out, or give the learning rate, for a recipe.
        lr: Learning rate.
        betas: Shares of the two means kept each step.
        eps: Keeps the divisor away from 0.
        weight_decay: Multiple of the weights added to their gradients, or taken from the weights.
        decoupled_weight_decay: Shrink the weights by weight_decay times lr instead, as AdamW does.
        maximize: Ascend along the gradient instead of descending.
    """

    rule_class = RAdamRule

    def __init__(
        self,
        params: Any = None,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params,
            lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            decoupled_weight_decay=decoupled_weight_decay,
            maximize=maximize,
        )

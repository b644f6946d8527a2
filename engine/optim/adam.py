"""Adam, AdamW and Adamax; on row gradients they are lazy: other rows keep weights and state."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, final

from gradmesh.engine import kernels
from gradmesh.engine.backend import Array
from gradmesh.engine.optim.optimizer import Optimizer
from gradmesh.engine.optim.rule import Rule, Slot


def check_betas(betas: tuple[float, float]) -> None:
    """Raise ValueError if the shares of Adam's family lie outside their range."""
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        raise ValueError(f"betas are {betas}; they are two numbers, each in [0, 1)")


@final
@dataclasses.dataclass(frozen=True)
class AdamRule(Rule):
    """Follow running means of gradients and of their squares, corrected for their start at 0."""

    name = "adam"

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    amsgrad: bool = False
    decoupled: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_betas(self.betas)

    def slots(self, dim: int) -> tuple[Slot, ...]:
        """Keep both means per element, and the largest second one for amsgrad."""
        means = (Slot("exp_avg", dim), Slot("exp_avg_sq", dim))
        return (*means, Slot("max_exp_avg_sq", dim)) if self.amsgrad else means

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
        decay, shrink, correction1, correction2 = self._numbers(lr, step)
        weights *= shrink
        change = grads + decay * weights if decay else grads
        first, second = slots["exp_avg"], slots["exp_avg_sq"]
        first += (change - first) * (1 - self.betas[0])
        second *= self.betas[1]
        second += change * change * (1 - self.betas[1])
        if self.amsgrad:
            largest = slots["max_exp_avg_sq"]
            xp.maximum(largest, second, out=largest)
            second = largest
        weights -= (lr / correction1) * first / (xp.sqrt(second) / correction2 + self.eps)

    def kernel(self) -> Callable[..., None]:
        """Return the update as one compiled pass."""
        return kernels.update.amsgrad if self.amsgrad else kernels.update.adam

    def numbers(self, kind: Any, lr: float, step: int) -> tuple[Any, ...]:
        """Return rate, decays, shares, eps and the correction of this step."""
        decay, shrink, correction1, correction2 = self._numbers(lr, step)
        first, second = self.betas
        plain = (lr / correction1, decay, shrink, 1 - first, second, 1 - second, self.eps)
        return (*[kind(number) for number in plain], kind(correction2))

    @property
    def is_steady(self) -> bool:
        """Return False: the corrections change with every step."""
        return False

    def _numbers(self, lr: float, step: int) -> tuple[float, float, float, float]:
        decay = 0.0 if self.decoupled else self.weight_decay
        shrink = 1.0 - lr * self.weight_decay if self.decoupled else 1.0
        first, second = self.betas
        return decay, shrink, 1 - first**step, math.sqrt(1 - second**step)


@final
class Adam(Optimizer):
    """Implement Adam: scale steps by running means of gradients and of their squares.

    Args:
        params: Parameters or groups; leave out, or give the learning rate, for a recipe.
        lr: Learning rate.
        betas: Shares of the two means kept each step.
        eps: Keeps the divisor away from 0.
        weight_decay: Multiple of the weights added to their gradients.
        amsgrad: Divide by the largest second mean so far.
        maximize: Ascend along the gradient instead of descending.
    """

    rule_class = AdamRule

    def __init__(
        self,
        params: Any = None,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params,
            lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            amsgrad=amsgrad,
            decoupled=False,
            maximize=maximize,
        )


@final
class AdamW(Optimizer):
    """Implement AdamW: Adam with decoupled weight decay.

    Args:
        params: Parameters or groups; leave out, or give the learning rate, for a recipe.
        lr: Learning rate.
        betas: Shares of the two means kept each step.
        eps: Keeps the divisor away from 0.
        weight_decay: Share of the weights, times lr, taken away each step.
        amsgrad: Divide by the largest second mean so far.
        maximize: Ascend along the gradient instead of descending.
    """

    rule_class = AdamRule

    def __init__(
        self,
        params: Any = None,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params,
            lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            amsgrad=amsgrad,
            decoupled=True,
            maximize=maximize,
        )


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
        """Return False: the correction changes with every step."""
        return False


@final
class Adamax(Optimizer):
    """Implement Adamax: Adam with the infinity norm.

    Args:
        params: Parameters or groups; leave out, or give the learning rate, for a recipe.
        lr: Learning rate.
        betas: Shares of mean and largest size kept each step.
        eps: Keeps the divisor away from 0.
        weight_decay: Multiple of the weights added to their gradients.
        maximize: Ascend along the gradient instead of descending.
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

"""NAdam: Adam with Nesterov momentum."""

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

# Below this a product leaves 1 - product at 1, in float64, too.
_NOTHING = 1e-18
# The last product of each pair of beta and decay: steps mostly follow one another.
_products: dict[tuple[float, float], tuple[int, float]] = {}
_MAX_PRODUCTS = 256


@final
@dataclasses.dataclass(frozen=True)
class NAdamRule(Rule):
    """Follow running means as Adam does, the first one as it will be a step later.

    The share of the mean grows with the steps. It and the correction for the start at 0 follow from
    the number of the step alone, so that rows of a table need no state but the two means.
    """

    name = "nadam"

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum_decay: float = 4e-3
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
        of_grad, of_mean, decay, shrink, correction2 = self._numbers(lr, step)
        weights *= shrink
        change = grads + decay * weights if decay else grads
        first, second = slots["exp_avg"], slots["exp_avg_sq"]
        first += (change - first) * (1 - self.betas[0])
        second *= self.betas[1]
        second += change * change * (1 - self.betas[1])
        move = of_grad * change + of_mean * first
        weights -= move / (xp.sqrt(second) / correction2 + self.eps)

    def kernel(self) -> Callable[..., None]:
        """Return the update as one compiled pass."""
        return kernels.update.nadam

    def numbers(self, kind: Any, lr: float, step: int) -> tuple[Any, ...]:
        """Return rates, decays, shares, eps and the correction of this step."""
        of_grad, of_mean, decay, shrink, correction2 = self._numbers(lr, step)
        first, second = self.betas
        plain = (of_grad, of_mean, decay, shrink, 1 - first, second, 1 - second, self.eps)
        return (*[kind(number) for number in plain], kind(correction2))

    @property
    def is_steady(self) -> bool:
        """Return False: shares and corrections change with every step."""
        return False

    def _numbers(self, lr: float, step: int) -> tuple[float, float, float, float, float]:
        decay = 0.0 if self.decoupled_weight_decay else self.weight_decay
        shrink = 1.0 - lr * self.weight_decay if self.decoupled_weight_decay else 1.0
        beta, fade = self.betas[0], self.momentum_decay
        product, following = _product(beta, fade, step), _share(beta, fade, step + 1)
        of_grad = lr * (1 - _share(beta, fade, step)) / (1 - product)
        of_mean = lr * following / (1 - product * following)
        return of_grad, of_mean, decay, shrink, math.sqrt(1 - self.betas[1] ** step)


def _share(beta: float, decay: float, step: int) -> float:
    """Return the share of the running mean at a step."""
    return beta * (1.0 - 0.5 * math.pow(0.96, step * decay))


def _product(beta: float, decay: float, step: int) -> float:
    """Return the product of the shares of all steps so far."""
    key = beta, decay
    at, product = _products.get(key, (0, 1.0))
    if at > step:
        at, product = 0, 1.0
    while at < step and product > _NOTHING:
        at += 1
        product *= _share(beta, decay, at)
    if len(_products) >= _MAX_PRODUCTS and key not in _products:
        _products.clear()
    _products[key] = at, product
    return product


@final
class NAdam(Optimizer):
    """Implement NAdam: Adam with Nesterov momentum.

    Args:
        params: Parameters or groups; leave out, or give the learning rate, for a recipe.
        lr: Learning rate.
        betas: Shares of the two means kept each step.
        eps: Keeps the divisor away from 0.
        weight_decay: Multiple of the weights added to their gradients, or taken from the weights.
        momentum_decay: How fast the share of the mean grows from half of its beta to the whole.
        decoupled_weight_decay: Shrink the weights by weight_decay times lr instead, as AdamW does.
        maximize: Ascend along the gradient instead of descending.
    """

    rule_class = NAdamRule

    def __init__(
        self,
        params: Any = None,
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum_decay: float = 4e-3,
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
            momentum_decay=momentum_decay,
            decoupled_weight_decay=decoupled_weight_decay,
            maximize=maximize,
        )

"""RMSprop and Adadelta, which scale gradients by their recent size."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, final

from gradmesh.engine import kernels
from gradmesh.engine.backend import Array
from gradmesh.engine.optim.optimizer import Optimizer
from gradmesh.engine.optim.rule import Rule, Slot


@final
@dataclasses.dataclass(frozen=True)
class RMSpropRule(Rule):
    """Divide gradients by the root of the running mean of their squares."""

    name = "rmsprop"

    alpha: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.0
    centered: bool = False

    def slots(self, dim: int) -> tuple[Slot, ...]:
        """Return the state kept per element."""
        return (
            Slot("square_avg", dim),
            *((Slot("momentum_buffer", dim),) if self.momentum else ()),
            *((Slot("grad_avg", dim),) if self.centered else ()),
        )

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
        square = slots["square_avg"]
        square *= self.alpha
        square += change * change * (1 - self.alpha)
        spread = square
        if self.centered:
            mean = slots["grad_avg"]
            mean += (change - mean) * (1 - self.alpha)
            spread = square - mean * mean
        change = change / (xp.sqrt(spread) + self.eps)
        if self.momentum:
            buffer = slots["momentum_buffer"]
            buffer *= self.momentum
            buffer += change
            change = buffer
        weights -= lr * change

    def kernel(self) -> Callable[..., None]:
        """Return the update as one compiled pass."""
        return kernels.update.rmsprop

    def operands(self, slots: Mapping[str, Array]) -> list[Array]:
        """Return all three arrays, the first one replaces those that the options do not need."""
        square = slots["square_avg"]
        return [square, slots.get("momentum_buffer", square), slots.get("grad_avg", square)]

    def numbers(self, kind: Any, lr: float, step: int) -> tuple[Any, ...]:
        """Return rate, decay, shares, eps, and what is asked for."""
        plain = (lr, self.weight_decay, self.alpha, 1 - self.alpha, self.eps, self.momentum)
        return (*[kind(number) for number in plain], self.centered)


@final
class RMSprop(Optimizer):
    """Implement RMSprop: divide gradients by the root of their running mean square.

    Args:
        params: Parameters or groups; leave out, or give the learning rate, for a recipe.
        lr: Learning rate.
        alpha: Share of the mean square kept each step.
        eps: Keeps the divisor away from 0.
        weight_decay: Multiple of the weights added to their gradients.
        momentum: Share of the running sum kept each step.
        centered: Subtract the square of the mean gradient.
        maximize: Ascend along the gradient instead of descending.
    """

    rule_class = RMSpropRule

    def __init__(
        self,
        params: Any = None,
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params,
            lr,
            alpha=alpha,
            eps=eps,
            weight_decay=weight_decay,
            momentum=momentum,
            centered=centered,
            maximize=maximize,
        )


@final
@dataclasses.dataclass(frozen=True)
class AdadeltaRule(Rule):
    """Scale gradients by the ratio of recent step sizes to recent gradient sizes."""

    name = "adadelta"

    rho: float = 0.9
    eps: float = 1e-6
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rho > 1:
            raise ValueError(f"rho is {self.rho}; it lies in [0, 1]")

    def slots(self, dim: int) -> tuple[Slot, ...]:
        """Return the state kept per element."""
        return (Slot("square_avg", dim), Slot("acc_delta", dim))

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
        square, moved = slots["square_avg"], slots["acc_delta"]
        square *= self.rho
        square += change * change * (1 - self.rho)
        move = xp.sqrt(moved + self.eps) / xp.sqrt(square + self.eps) * change
        moved *= self.rho
        moved += move * move * (1 - self.rho)
        weights -= lr * move

    def kernel(self) -> Callable[..., None]:
        """Return the update as one compiled pass."""
        return kernels.update.adadelta

    def numbers(self, kind: Any, lr: float, step: int) -> tuple[Any, ...]:
        """Return rate, decay, shares and eps."""
        plain = (lr, self.weight_decay, self.rho, 1 - self.rho, self.eps)
        return tuple([kind(number) for number in plain])


@final
class Adadelta(Optimizer):
    """Implement Adadelta: scale gradients by the ratio of recent steps to recent gradients.

    Args:
        params: Parameters or groups; leave out, or give the learning rate, for a recipe.
        lr: Learning rate.
        rho: Share of the running means kept each step.
        eps: Keeps roots away from 0.
        weight_decay: Multiple of the weights added to their gradients.
        maximize: Ascend along the gradient instead of descending.
    """

    rule_class = AdadeltaRule

    def __init__(
        self,
        params: Any = None,
        lr: float = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, lr, rho=rho, eps=eps, weight_decay=weight_decay, maximize=maximize)

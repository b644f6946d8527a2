"""Adagrad, per element and per row."""

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
class AdagradRule(Rule):
    """Divide gradients by the root of the sum of their squares."""

    name = "adagrad"

    lr_decay: float = 0.0
    weight_decay: float = 0.0
    initial_accumulator_value: float = 0.0
    eps: float = 1e-10

    def slots(self, dim: int) -> tuple[Slot, ...]:
        """Keep one sum per element."""
        return (Slot("sum", dim, self.initial_accumulator_value),)

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
        total = slots["sum"]
        total += change * change
        weights -= self._rate(lr, step) * change / (xp.sqrt(total) + self.eps)

    def kernel(self) -> Callable[..., None]:
        """Return the update as one compiled pass."""
        return kernels.update.adagrad

    def numbers(self, kind: Any, lr: float, step: int) -> tuple[Any, ...]:
        """Return rate, decay and eps."""
        return kind(self._rate(lr, step)), kind(self.weight_decay), kind(self.eps)

    @property
    def is_steady(self) -> bool:
        """Return whether the rate is constant, that is without decay."""
        return not self.lr_decay

    def _rate(self, lr: float, step: int) -> float:
        return lr / (1 + (step - 1) * self.lr_decay)


@final
@dataclasses.dataclass(frozen=True)
class RowwiseAdagradRule(Rule):
    """Divide each row's gradient by the root of the sum of its mean squares: one number a row."""

    name = "rowwise_adagrad"
    rowwise = True

    weight_decay: float = 0.0
    initial_accumulator_value: float = 0.0
    eps: float = 1e-8

    def slots(self, dim: int) -> tuple[Slot, ...]:
        """Keep one sum per row."""
        return (Slot("sum", 1, self.initial_accumulator_value),)

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
        total = slots["sum"]
        total += (change * change).mean(axis=1, keepdims=True)
        weights -= change * (lr / (xp.sqrt(total) + self.eps))

    def kernel(self) -> Callable[..., None]:
        """Return the update as one compiled pass."""
        return kernels.update.rowwise_adagrad

    def numbers(self, kind: Any, lr: float, step: int) -> tuple[Any, ...]:
        """Return rate, decay and eps."""
        return kind(lr), kind(self.weight_decay), kind(self.eps)


@final
class Adagrad(Optimizer):
    """Implement Adagrad: scale steps by the root of the sum of squared gradients.

    Args:
        params: Parameters or groups; leave out, or give the learning rate, for a recipe.
        lr: Learning rate.
        lr_decay: How fast the learning rate falls with the steps.
        weight_decay: Multiple of the weights added to their gradients.
        initial_accumulator_value: Where the sums start.
        eps: Keeps the divisor away from 0.
        maximize: Ascend along the gradient instead of descending.
    """

    rule_class = AdagradRule

    def __init__(
        self,
        params: Any = None,
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params,
            lr,
            lr_decay=lr_decay,
            weight_decay=weight_decay,
            initial_accumulator_value=initial_accumulator_value,
            eps=eps,
            maximize=maximize,
        )


@final
class RowwiseAdagrad(Optimizer):
    """Implement row-wise Adagrad: one sum per row, for big embedding tables.

    Args:
        params: Parameters or groups; leave out, or give the learning rate, for a recipe.
        lr: Learning rate.
        weight_decay: Multiple of the weights added to their gradients.
        initial_accumulator_value: Where the sums start.
        eps: Keeps the divisor away from 0.
        maximize: Ascend along the gradient instead of descending.
    """

    rule_class = RowwiseAdagradRule

    def __init__(
        self,
        params: Any = None,
        lr: float = 1e-2,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-8,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params,
            lr,
            weight_decay=weight_decay,
            initial_accumulator_value=initial_accumulator_value,
            eps=eps,
            maximize=maximize,
        )

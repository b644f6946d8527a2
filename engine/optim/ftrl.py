"""FTRL-proximal: sparse weights for linear models on wide features (McMahan et al., 2013)."""

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
class FTRLRule(Rule):
    """Solve for the weights that fit all gradients so far, with L1 and L2 penalties."""

    name = "ftrl"

    beta: float = 1.0
    l1: float = 0.0
    l2: float = 0.0
    initial_accumulator_value: float = 0.0

    def slots(self, dim: int) -> tuple[Slot, ...]:
        """Return the state kept per element."""
        return (Slot("z", dim), Slot("n", dim, self.initial_accumulator_value))

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
        z, n = slots["z"], slots["n"]
        grown = n + grads * grads
        z += grads - (xp.sqrt(grown) - xp.sqrt(n)) / lr * weights
        n[...] = grown
        divisor = (self.beta + xp.sqrt(n)) / lr + self.l2
        found = (xp.sign(z) * self.l1 - z) / divisor
        weights[...] = xp.where(xp.abs(z) <= self.l1, 0, found)

    def kernel(self) -> Callable[..., None]:
        """Return the update as one compiled pass."""
        return kernels.update.ftrl

    def numbers(self, kind: Any, lr: float, step: int) -> tuple[Any, ...]:
        """Return rate and penalties."""
        return kind(lr), kind(self.beta), kind(self.l1), kind(self.l2)


@final
class FTRL(Optimizer):
    """Implement FTRL-proximal; its L1 penalty sets weights to exactly 0.

    Args:
        params: Parameters or groups; leave out, or give the learning rate, for a recipe.
        lr: Learning rate.
        beta: Smooths the first steps.
        l1: Penalty that makes weights 0.
        l2: Penalty that shrinks weights.
        initial_accumulator_value: Where the sums of squares start.
        maximize: Ascend along the gradient instead of descending.
    """

    rule_class = FTRLRule

    def __init__(
        self,
        params: Any = None,
        lr: float = 0.1,
        beta: float = 1.0,
        l1: float = 0.0,
        l2: float = 0.0,
        initial_accumulator_value: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params,
            lr,
            beta=beta,
            l1=l1,
            l2=l2,
            initial_accumulator_value=initial_accumulator_value,
            maximize=maximize,
        )

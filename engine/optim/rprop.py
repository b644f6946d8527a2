"""Rprop: steps whose size depends on signs alone; for whole batches."""

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
class RpropRule(Rule):
    """Grow the step while the gradient keeps its sign, shrink it when the sign turns."""

    name = "rprop"

    etas: tuple[float, float] = (0.5, 1.2)
    step_sizes: tuple[float, float] = (1e-6, 50.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.etas[0] < 1 < self.etas[1]:
            raise ValueError(f"etas are {self.etas}; the first lies in (0, 1), the second above 1")

    def slots(self, dim: int) -> tuple[Slot, ...]:
        """Return the state kept per element."""
        return (Slot("prev", dim), Slot("step_size", dim))

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
        before, size = slots["prev"], slots["step_size"]
        turn = xp.sign(grads * before)
        # A step size of 0 is one that was never set; real ones have a lower bound.
        size[...] = xp.where(size == 0, lr, size)
        size *= xp.where(turn > 0, self.etas[1], xp.where(turn < 0, self.etas[0], 1.0))
        xp.clip(size, self.step_sizes[0], self.step_sizes[1], out=size)
        before[...] = xp.where(turn < 0, 0, grads)
        weights -= xp.sign(before) * size

    def kernel(self) -> Callable[..., None]:
        """Return the update as one compiled pass."""
        return kernels.update.rprop

    def numbers(self, kind: Any, lr: float, step: int) -> tuple[Any, ...]:
        """Return the first size, the factors and the bounds."""
        return tuple([kind(number) for number in (lr, *self.etas, *self.step_sizes)])


@final
class Rprop(Optimizer):
    """Implement Rprop: step sizes depend on the signs of gradients; for full batches.

    Args:
        params: Parameters or groups; leave out, or give the learning rate, for a recipe.
        lr: Learning rate.
        etas: Factors that shrink and grow a step.
        step_sizes: Smallest and largest step.
        maximize: Ascend along the gradient instead of descending.
    """

    rule_class = RpropRule

    def __init__(
        self,
        params: Any = None,
        lr: float = 1e-2,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50.0),
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, lr, etas=etas, step_sizes=step_sizes, maximize=maximize)

"""Stochastic gradient descent."""

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
class SGDRule(Rule):
    """Subtract lr times the gradient, or a running sum of gradients."""

    name = "sgd"
    signed = ("dampening",)
    counts_from_state = True

    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and (self.momentum <= 0 or self.dampening != 0):
            raise ValueError("nesterov needs a momentum and no dampening")

    def slots(self, dim: int) -> tuple[Slot, ...]:
        """Keep one running sum per element if there is momentum."""
        return (Slot("momentum_buffer", dim),) if self.momentum else ()

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
        if self.momentum:
            buffer = slots["momentum_buffer"]
            buffer *= self.momentum
            buffer += self._share(step) * change
            change = change + self.momentum * buffer if self.nesterov else buffer
        weights -= lr * change

    def kernel(self) -> Callable[..., None]:
        """Return the update as one compiled pass."""
        return kernels.update.momentum if self.momentum else kernels.update.sgd

    def numbers(self, kind: Any, lr: float, step: int) -> tuple[Any, ...]:
        """Return rate, decay, and what the running sum needs."""
        plain = (kind(lr), kind(self.weight_decay))
        if not self.momentum:
            return plain
        return (*plain, kind(self.momentum), kind(self._share(step)), self.nesterov)

    @property
    def is_steady(self) -> bool:
        """Return whether all steps use the same numbers; with dampening the first one differs."""
        return not self.dampening

    def _share(self, step: int) -> float:
        # As in torch, the first gradient enters the running sum undamped.
        return 1.0 if step == 1 else 1.0 - self.dampening


@final
class SGD(Optimizer):
    """Implement stochastic gradient descent, optionally with momentum.

    Args:
        params: Parameters or groups; leave out, or give the learning rate, for a recipe.
        lr: Learning rate.
        momentum: Share of the running sum kept each step.
        dampening: Share of a new gradient left out of the running sum.
        weight_decay: Multiple of the weights added to their gradients.
        nesterov: Look ahead along the running sum.
        maximize: Ascend along the gradient instead of descending.
    """

    rule_class = SGDRule

    def __init__(
        self,
        params: Any = None,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params,
            lr,
            momentum=momentum,
            dampening=dampening,
            weight_decay=weight_decay,
            nesterov=nesterov,
            maximize=maximize,
        )

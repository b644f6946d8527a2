"""What takes the place of the all-reduce or follows it: one thing at most for each wrapper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

from gradmesh.engine.autograd import Tensor
from gradmesh.engine.optim.optimizer import Optimizer
from gradmesh.trainer.ddp import in_backward
from gradmesh.trainer.ddp.gradients import Gradients
from gradmesh.trainer.ddp.hook_check import bound_hook, check_hook, hook_name
from gradmesh.trainer.ddp.reducer import Reducer
from gradmesh.trainer.errors import ReductionError


@final
class Stepping:
    """Communication hooks and optimizers of one reducer.

    Args:
        reducer: The reducer.
        is_mixed: Whether gradients travel in another dtype.
    """

    def __init__(self, reducer: Reducer, is_mixed: bool) -> None:
        self._reducer = reducer
        self._is_mixed = is_mixed
        self._has_optimizer = False
        self._is_taken_over = False

    def set_hook(self, state: Any, hook: Any) -> None:
        """Let a hook take the place of the all-reduce."""
        check_hook(hook)
        self._check_free("a communication hook")
        if self._is_mixed:
            raise ReductionError("a communication hook cannot be combined with mixed_precision")
        self._reducer.hook = bound_hook(state, hook)
        self._reducer.hook_name = hook_name(hook)

    def fuse(self, optimizer: Optimizer, leaves: Sequence[Tensor]) -> None:
        """Step parameters after each reduction."""
        self._check_free("a fused optimizer")
        self._has_optimizer = True

        def step(gradients: Gradients) -> None:
            held = {leaf: gradients.get(leaf) for leaf in leaves}
            optimizer.step({leaf: grad for leaf, grad in held.items() if grad is not None})

        self._reducer.after.append(step)

    def take_over(self) -> None:
        """Move the steps of apply_optimizer_in_backward behind the average, once."""
        if self._is_taken_over:
            return
        self._is_taken_over = True
        taken = in_backward.take_over(self._reducer.leaves)
        if not taken:
            return
        self._check_free("apply_optimizer_in_backward")
        self._has_optimizer = True

        def step(gradients: Gradients) -> None:
            for leaf, optimizers in taken:
                in_backward.step(gradients, leaf, optimizers)

        self._reducer.after.append(step)

    def _check_free(self, what: str) -> None:
        if self._reducer.hook is not None:
            raise ReductionError(
                f"{what} cannot be added: there is a communication hook, {self._reducer.hook_name}"
            )
        if self._has_optimizer:
            raise ReductionError(f"{what} cannot be added: an optimizer steps in backward")

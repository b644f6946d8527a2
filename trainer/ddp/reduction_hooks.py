"""Hooks of the reduction: a communication hook, or optimizers that step in backward.

A wrapper has at most one of them: a communication hook replaces the all-reduce, an optimizer steps
as soon as gradients are averaged.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, final

from gradmesh.engine.autograd import HookHandle, Tensor, gradient_map
from gradmesh.engine.optim.optimizer import Optimizer
from gradmesh.trainer.ddp.comm_hook import bound_hook, check_hook, hook_name
from gradmesh.trainer.ddp.gradients import Gradients
from gradmesh.trainer.ddp.reducer import Reducer
from gradmesh.trainer.errors import ReductionError

# By id, because tensors compare element by element; an entry is removed with its parameter.
_in_backward: dict[int, list[tuple[Optimizer, HookHandle]]] = {}


def apply_optimizer_in_backward(
    optimizer_class: type[Optimizer],
    parameters: Iterable[Tensor],
    options: Mapping[str, Any],
) -> None:
    """Step each parameter in every backward pass as soon as its gradient is ready.

    The gradient is dropped afterwards. Under DistributedDataParallel the step comes after the
    average over all ranks. Call it before wrapping.

    Args:
        optimizer_class: Such as SGD; every parameter gets its own instance.
        parameters: The parameters to step.
        options: Options of the optimizer, such as lr.
    """
    for parameter in parameters:
        optimizer = optimizer_class([parameter], **options)
        handle = parameter.register_post_accumulate_grad_hook(_stepper(optimizer))
        if id(parameter) not in _in_backward:
            _in_backward[id(parameter)] = []
            weakref.finalize(parameter, _in_backward.pop, id(parameter), None)
        _in_backward[id(parameter)].append((optimizer, handle))


def in_backward_optimizers(parameters: Iterable[Tensor]) -> list[Optimizer]:
    """Return the optimizers that step the given parameters in backward."""
    return [optimizer for p in parameters for optimizer, _ in _in_backward.get(id(p), ())]


def _detach_optimizers(leaves: Sequence[Tensor]) -> list[tuple[Tensor, list[Optimizer]]]:
    """Remove the hooks of in-backward optimizers; the caller steps them after the average."""
    taken = []
    for leaf in leaves:
        entries = _in_backward.get(id(leaf))
        if entries:
            for _, handle in entries:
                handle.remove()
            taken.append((leaf, [optimizer for optimizer, _ in entries]))
    return taken


def _step(gradients: Gradients, leaf: Tensor, optimizers: Iterable[Optimizer]) -> None:
    """Step one parameter and drop its gradient."""
    grad = gradients.get(leaf)
    if grad is None:
        return
    for optimizer in optimizers:
        optimizer.step({leaf: grad})
    gradients.drop(leaf)


def _stepper(optimizer: Optimizer) -> Any:
    def run(leaf: Tensor) -> None:
        _step(Gradients(gradient_map()), leaf, [optimizer])

    return run


@final
class ReductionHooks:
    """Register the communication hook or the in-backward optimizers of one reducer.

    Args:
        reducer: The reducer.
        is_mixed: Whether gradients are reduced in another dtype.
    """

    def __init__(self, reducer: Reducer, is_mixed: bool) -> None:
        self._reducer = reducer
        self._is_mixed = is_mixed
        self._has_optimizer = False
        self._has_moved = False

    def set_comm_hook(self, state: Any, hook: Any) -> None:
        """Replace the all-reduce by a communication hook."""
        check_hook(hook)
        self._check_free("a communication hook")
        if self._is_mixed:
            raise ReductionError("a communication hook cannot be combined with mixed_precision")
        self._reducer.hook = bound_hook(state, hook)
        self._reducer.hook_name = hook_name(hook)

    def add_fused_optimizer(self, optimizer: Optimizer, leaves: Sequence[Tensor]) -> None:
        """Step parameters after each reduction."""
        self._check_free("a fused optimizer")
        self._has_optimizer = True

        def step(gradients: Gradients) -> None:
            held = {leaf: gradients.get(leaf) for leaf in leaves}
            optimizer.step({leaf: grad for leaf, grad in held.items() if grad is not None})

        self._reducer.after.append(step)

    def move_in_backward_optimizers(self) -> None:
        """Run the optimizers of apply_optimizer_in_backward after the average instead; once."""
        if self._has_moved:
            return
        self._has_moved = True
        detached = _detach_optimizers(self._reducer.leaves)
        if not detached:
            return
        self._check_free("apply_optimizer_in_backward")
        self._has_optimizer = True

        def step(gradients: Gradients) -> None:
            for leaf, optimizers in detached:
                _step(gradients, leaf, optimizers)

        self._reducer.after.append(step)

    def _check_free(self, what: str) -> None:
        if self._reducer.hook is not None:
            raise ReductionError(
                f"{what} cannot be added: there is a communication hook, {self._reducer.hook_name}"
            )
        if self._has_optimizer:
            raise ReductionError(f"{what} cannot be added: an optimizer steps in backward")

"""Optimizers that step inside the backward pass, as soon as gradients are averaged."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gradmesh.engine.autograd import HookHandle, Tensor, gradient_map
from gradmesh.engine.optim.optimizer import Optimizer
from gradmesh.trainer.ddp.gradients import Gradients

# By id, because tensors compare element by element; an entry goes with its parameter.
_tagged: dict[int, list[tuple[Optimizer, HookHandle]]] = {}


def apply_optimizer_in_backward(
    optimizer_class: type[Optimizer],
    parameters: Iterable[Tensor],
    options: Mapping[str, Any],
) -> None:
    """Step each parameter in every backward pass as soon as its gradient is there.

    The gradient is forgotten afterwards. Under DistributedDataParallel the step comes after the
    average over all ranks. Call it before wrapping.

    Args:
        optimizer_class: Such as SGD; every parameter gets an instance of its own.
        parameters: Which ones.
        options: Of the optimizer, such as lr.
    """
    for parameter in parameters:
        optimizer = optimizer_class([parameter], **options)
        handle = parameter.register_post_accumulate_grad_hook(_stepper(optimizer))
        if id(parameter) not in _tagged:
            _tagged[id(parameter)] = []
            weakref.finalize(parameter, _tagged.pop, id(parameter), None)
        _tagged[id(parameter)].append((optimizer, handle))


def in_backward_optimizers(parameters: Iterable[Tensor]) -> list[Optimizer]:
    """Return the optimizers that step these parameters in backward."""
    return [optimizer for p in parameters for optimizer, _ in _tagged.get(id(p), ())]


def take_over(leaves: Sequence[Tensor]) -> list[tuple[Tensor, list[Optimizer]]]:
    """Remove the steps of single parameters; the caller makes them after the average."""
    taken = []
    for leaf in leaves:
        entries = _tagged.get(id(leaf))
        if entries:
            for _, handle in entries:
                handle.remove()
            taken.append((leaf, [optimizer for optimizer, _ in entries]))
    return taken


def step(gradients: Gradients, leaf: Tensor, optimizers: Iterable[Optimizer]) -> None:
    """Step one parameter and forget its gradient."""
    grad = gradients.get(leaf)
    if grad is None:
        return
    for optimizer in optimizers:
        optimizer.step({leaf: grad})
    gradients.drop(leaf)


def _stepper(optimizer: Optimizer) -> Any:
    def run(leaf: Tensor) -> None:
        step(Gradients(gradient_map()), leaf, [optimizer])

    return run

"""How the dense layers of all trainers are kept equal, if they are."""

from collections.abc import Callable
from typing import Any, Literal

from gradmesh.engine.nn import Module
from gradmesh.sdk.process.setting import ConfigError, Problem
from gradmesh.trainer.ddp import DistributedDataParallel
from gradmesh.trainer.process_group import ProcessGroup


def replicate(
    model: Module, mode: Literal["whole", "dense", "none"], group: ProcessGroup
) -> Callable[..., Any]:
    """Return what to call instead of the model; collective.

    Args:
        model: The model; with "dense" its parts are wrapped in place.
        mode: "whole" averages all gradients together; "dense" those of each part by itself; with
            "none" every rank goes its own way.
        group: The ranks.

    Raises:
        ConfigError: With "dense" the model has parameters outside its parts.
    """
    if mode == "none" or not list(model.parameters()):
        return model
    if mode == "whole":
        return DistributedDataParallel(model, process_group=group)
    parts = {name: child for name, child in model.named_children() if list(child.parameters())}
    inside = {id(p) for child in parts.values() for p in child.parameters()}
    outside = [name for name, p in model.named_parameters() if id(p) not in inside]
    if outside:
        text = f"is dense, but {', '.join(outside)} belong to no part of the model; use whole"
        raise ConfigError([Problem("job.ddp", text)])
    for name, child in parts.items():
        setattr(model, name, DistributedDataParallel(child, process_group=group))
    return model

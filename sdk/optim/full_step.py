"""One training step: apply the gradients of a context to tables and dense parameters."""

from collections.abc import Mapping
from typing import Any, Protocol

from gradmesh.sdk.autograd.apply import apply
from gradmesh.sdk.autograd.context import Context
from gradmesh.sdk.optim.distributed import DistributedOptimizer
from gradmesh.sdk.transport.deadline import check_timeout


class LocalOptimizer(Protocol):
    """An optimizer of parameters of this process, as those of gm.optim are."""

    def step(self, grads: Mapping[Any, Any] | None = None, /) -> None:
        """Update every parameter that has a gradient in `grads`."""


def step(
    ctx: Context,
    optimizer: LocalOptimizer | DistributedOptimizer | None = None,
    *,
    timeout_s: float | None = None,
) -> None:
    """Apply the gradients of a context: to the rows of tables, then to the dense parameters.

    Short for `gm.autograd.apply(ctx)` and `optimizer.step(ctx.gradients())`. In a run this is the
    trainer's share of the step: the servers prepare it and commit it once all trainers have sent
    theirs. If a server refuses, parameters of this process are as before. Those of a
    DistributedOptimizer are not: it steps before the tables do, since it needs the open context.

    Args:
        ctx: A context after its backward; it can be applied once.
        optimizer: Of the dense parameters; None changes rows only.
        timeout_s: Deadline of the tables' step; the mesh's by default.

    Raises:
        ContextReleased: The context was applied or released.
        StaleGeneration: A newer generation of trainers has formed.
    """
    ctx.check()
    check_timeout(timeout_s, 0)  # before anything changes
    if isinstance(optimizer, DistributedOptimizer):
        optimizer.step(ctx)
    if ctx.has_mesh:
        apply(ctx, timeout_s=timeout_s)
    else:
        ctx.note_applied()
    if optimizer is not None and not isinstance(optimizer, DistributedOptimizer):
        optimizer.step(ctx.gradients())

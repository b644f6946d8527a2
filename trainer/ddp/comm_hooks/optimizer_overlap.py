"""A hook that steps a bucket's parameters as soon as its gradients are averaged.

Steps of early buckets run while later ones are still on their way.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gradmesh.engine.autograd import RowGrad, Tensor
from gradmesh.engine.optim.optimizer import Optimizer
from gradmesh.trainer.ddp.comm_hooks.default import CommHook
from gradmesh.trainer.ddp.future import Future
from gradmesh.trainer.ddp.grad_bucket import GradBucket


def hook_then_optimizer(
    hook: CommHook, optimizer: Optimizer, parameters: Iterable[Tensor] | None = None
) -> CommHook:
    """Return a hook that runs another one and then the optimizer on the bucket's parameters.

    A parameter without a gradient on any rank is stepped with zero. Not for gradient accumulation.

    Args:
        hook: Averages the gradients.
        optimizer: Holds the parameters; do not call its `step` as well.
        parameters: Which ones to step; all of the bucket if None.
    """
    chosen = None if parameters is None else {id(parameter) for parameter in parameters}

    def run(state: Any, bucket: GradBucket) -> Future:
        leaves = bucket.parameters()

        def step(result: Any) -> Any:
            grads = [result]
            if not isinstance(result, RowGrad):
                bucket.set_buffer(result)
                grads = bucket.gradients()
            pairs = zip(leaves, grads, strict=True)
            optimizer.step({p: g for p, g in pairs if chosen is None or id(p) in chosen})
            return bucket.buffer() if not isinstance(result, RowGrad) else result

        return hook(state, bucket).then(step)

    run.__qualname__ = f"hook_then_optimizer({getattr(hook, '__qualname__', hook)})"
    return run

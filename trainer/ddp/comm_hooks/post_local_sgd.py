"""Post-local SGD: average over all ranks at first, later over a subgroup or not at all.

The parameters of subgroups then diverge; average them periodically with `average_parameters`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from gradmesh.engine.autograd import Tensor
from gradmesh.trainer.ddp.comm_hook import CommFuture, GradBucket
from gradmesh.trainer.ddp.comm_hooks.default import average
from gradmesh.trainer.ddp.gradients import copy_into
from gradmesh.trainer.process_group import ProcessGroup


@final
class PostLocalSGDState:
    """The state of `post_local_sgd_hook`: the iteration, and the groups to average over.

    Args:
        process_group: All ranks; None means those of the wrapper.
        subgroup: The ranks of the second phase, such as those of one host; None means that nothing
            is averaged then.
        start_local_sgd_iter: Iteration at which the second phase starts.
        post_local_gradient_allreduce: Whether to average within the subgroup then.
    """

    def __init__(
        self,
        process_group: ProcessGroup | None,
        subgroup: ProcessGroup | None,
        start_local_sgd_iter: int,
        post_local_gradient_allreduce: bool = True,
    ) -> None:
        self.process_group = process_group
        self.subgroup = subgroup
        self.start_local_sgd_iter = start_local_sgd_iter
        self.post_local_gradient_allreduce = post_local_gradient_allreduce
        self.iter = 0

    def count(self, bucket: GradBucket) -> None:
        """Count an iteration with its last bucket."""
        if bucket.is_last():
            self.iter += 1


def post_local_sgd_hook(state: PostLocalSGDState, bucket: GradBucket) -> CommFuture:
    """Average over all ranks in the first phase, then within the subgroup or not at all."""
    is_global = state.iter < state.start_local_sgd_iter
    state.count(bucket)
    if is_global:
        return average(state.process_group or bucket.group, bucket)
    if not state.post_local_gradient_allreduce or state.subgroup is None:
        return CommFuture.done(bucket.buffer())
    return average(state.subgroup, bucket)


def average_parameters(parameters: Iterable[Tensor], group: ProcessGroup) -> None:
    """Replace parameters by their averages over the ranks; collective."""
    works = []
    for parameter in parameters:
        memory = group.empty(parameter.shape, parameter.dtype)
        copy_into(memory, parameter.data)
        works.append((group.all_reduce(memory, "avg"), memory, parameter))
    for work, memory, parameter in works:
        work.wait()
        copy_into(parameter.data, memory)
        parameter.version[0] += 1

"""All-reduce some parameters separately, when the gradient of a trigger parameter is ready."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, final

from gradmesh.engine.autograd import HookHandle, Tensor
from gradmesh.trainer.ddp import error_report
from gradmesh.trainer.ddp.bucket import DenseBucket, Launch
from gradmesh.trainer.ddp.bucket_assignment import GradientSpec
from gradmesh.trainer.ddp.gradients import Gradients
from gradmesh.trainer.process_group import ProcessGroup


@final
class DelayedAllReduce:
    """Average the gradients of some parameters in one flat buffer.

    Args:
        named: Names and parameters; all of one dtype.
        trigger: Parameter whose complete gradient starts the all-reduce.
        group: The ranks.

    Raises:
        ValueError: If there are no parameters, or of several dtypes.
    """

    def __init__(
        self, named: Sequence[tuple[str, Tensor]], trigger: Tensor, group: ProcessGroup
    ) -> None:
        dtypes = {str(tensor.dtype) for _, tensor in named}
        if len(dtypes) != 1:
            raise ValueError(
                f"delay_all_reduce_named_params must be of one dtype, not {sorted(dtypes)}"
            )
        self.names = [name for name, _ in named]
        self.leaves = [tensor for _, tensor in named]
        self._trigger = trigger
        self._late: set[str] = set()
        self._is_launched = False
        self.move_to(group)

    def move_to(self, group: ProcessGroup) -> None:
        """Allocate the buffer in memory of a group."""
        specs = [
            GradientSpec(name, leaf.shape, leaf.dtype, str(leaf.device))
            for name, leaf in zip(self.names, self.leaves, strict=True)
        ]
        members = range(len(specs))
        self._bucket = DenseBucket(0, members, self.leaves, specs, group)
        self._group = group

    def register_hooks(self, reducer: weakref.ref[Any]) -> list[HookHandle]:
        """Register hooks that launch on the trigger and detect gradients that come after it."""

        def late(name: str) -> Callable[[Tensor], None]:
            def run(_: Tensor) -> None:
                if self._is_launched:
                    self._late.add(name)

            return run

        def send(_: Tensor) -> None:
            owner = reducer()
            state = None if owner is None else owner.current()
            if state is not None:
                self._launch(state.gradients)

        handles = [
            leaf.register_post_accumulate_grad_hook(late(name))
            for name, leaf in zip(self.names, self.leaves, strict=True)
        ]
        return [*handles, self._trigger.register_post_accumulate_grad_hook(send)]

    def begin(self) -> None:
        """Begin a pass."""
        self._late.clear()
        self._is_launched = False

    def launch_missed(self, gradients: Gradients) -> list[error_report.ErrorReport]:
        """Launch the all-reduce if the trigger did not; return the errors of the pass."""
        if not self._is_launched:
            self._launch(gradients)
            return [error_report.missing(["param_to_hook_all_reduce"], True)]
        if self._late:
            return [error_report.late(name) for name in sorted(self._late)]
        return []

    def finish(self, gradients: Gradients) -> None:
        """Wait, and write the averages back."""
        self._bucket.wait()
        for slot, leaf in enumerate(self.leaves):
            gradients.put(leaf, self._bucket.result(slot))

    def _launch(self, gradients: Gradients) -> None:
        if self._is_launched:
            return
        self._is_launched = True
        for slot, leaf in enumerate(self.leaves):
            self._bucket.fill(slot, gradients.get(leaf))
        self._bucket.launch(Launch(self._group, self._group.size, None, False, True))

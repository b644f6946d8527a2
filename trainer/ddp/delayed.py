"""Parameters that are reduced apart, in one piece, when another parameter's gradient arrives."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, final

from gradmesh.engine.autograd import HookHandle, Tensor
from gradmesh.trainer.ddp import fault
from gradmesh.trainer.ddp.bucket import DenseBucket, Launch
from gradmesh.trainer.ddp.buckets import GradientSpec
from gradmesh.trainer.ddp.gradients import Gradients
from gradmesh.trainer.process_group import ProcessGroup


@final
class Delayed:
    """Average the gradients of some parameters in one flat buffer.

    Args:
        named: Names and parameters; all of one dtype.
        trigger: Sends them off when its gradient is complete.
        group: The ranks.

    Raises:
        ValueError: If there are no parameters, or of several dtypes.
    """

    def __init__(
        self, named: Sequence[tuple[str, Tensor]], trigger: Tensor, group: ProcessGroup
    ) -> None:
        kinds = {str(tensor.dtype) for _, tensor in named}
        if len(kinds) != 1:
            raise ValueError(
                f"delay_all_reduce_named_params must be of one dtype, not {sorted(kinds)}"
            )
        self.names = [name for name, _ in named]
        self.leaves = [tensor for _, tensor in named]
        self._trigger = trigger
        self._late: set[str] = set()
        self._is_launched = False
        self.move_to(group)

    def move_to(self, group: ProcessGroup) -> None:
        """Make the buffer, in memory of a group."""
        specs = [
            GradientSpec(name, leaf.shape, leaf.dtype, str(leaf.device))
            for name, leaf in zip(self.names, self.leaves, strict=True)
        ]
        members = range(len(specs))
        self._bucket = DenseBucket(0, members, self.leaves, specs, group)
        self._group = group

    def watch(self, reducer: weakref.ref[Any]) -> list[HookHandle]:
        """Watch the trigger, and whether a gradient comes after it."""

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

    def settle(self, gradients: Gradients) -> list[fault.Fault]:
        """Send the buffer if the trigger did not; return what went wrong."""
        if not self._is_launched:
            self._launch(gradients)
            return [fault.missing(["param_to_hook_all_reduce"], True)]
        if self._late:
            return [fault.late(name) for name in sorted(self._late)]
        return []

    def finish(self, gradients: Gradients) -> None:
        """Wait, and write the averages back."""
        self._bucket.wait()
        for place, leaf in enumerate(self.leaves):
            gradients.put(leaf, self._bucket.result(place))

    def _launch(self, gradients: Gradients) -> None:
        if self._is_launched:
            return
        self._is_launched = True
        for place, leaf in enumerate(self.leaves):
            self._bucket.fill(place, gradients.get(leaf))
        self._bucket.launch(Launch(self._group, self._group.size, None, False, True))

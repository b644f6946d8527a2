"""What a replica does on a rank whose inputs have ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from gradmesh.trainer.ddp.buffers import Buffers
from gradmesh.trainer.ddp.join import Intent, JoinHook, Round
from gradmesh.trainer.ddp.reducer import Reducer
from gradmesh.trainer.ddp.shadow import shadow_pass
from gradmesh.trainer.process_group import ProcessGroup


@final
class ReplicaHook(JoinHook):
    """Mirror the iterations of the active ranks with zeros, and take over the result at the end.

    Args:
        reducer: The replica's reducer.
        buffers: Its buffers.
        group: The ranks.
        copy_state: Copies one rank's state to all.
        follow: Brings the wrapper into line with what the active ranks do.
    """

    def __init__(
        self,
        reducer: Reducer,
        buffers: Buffers,
        group: ProcessGroup,
        copy_state: Callable[[int], None],
        follow: Callable[[Round], None],
    ) -> None:
        self._reducer = reducer
        self._buffers = buffers
        self._group = group
        self._copy_state = copy_state
        self._follow = follow

    def main_hook(self, round_: Round) -> None:
        """Mirror one iteration."""
        self._follow(round_)
        intent = round_.intent
        syncs = bool(intent & Intent.SYNC_GRADIENTS)
        if syncs:
            self._reducer.rebuild()
        if intent & Intent.SYNC_BUFFERS:
            self._buffers.before_forward(self._group, max(round_.active))
            self._buffers.after_forward()
        if syncs:
            shadow_pass(self._reducer)
        self._buffers.wait()

    def post_hook(self, last: Round) -> None:
        """Take over the state of the highest rank that was active last."""
        self._copy_state(max(last.active))

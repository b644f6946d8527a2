"""State of an optimizer that was sent and is to be taken over."""

from collections.abc import Mapping, Sequence
from typing import Any, final

from gradmesh.engine.autograd import Tensor
from gradmesh.engine.optim.optimizer import Optimizer
from gradmesh.engine.optim.pending import copy_state


@final
class PendingState:
    """Checked state of an optimizer's parameters; nothing is changed yet.

    Args:
        optimizer: The optimizer.
        params: Its parameters.
        state: The state of each, None before its first step.

    Raises:
        ValueError: It does not fit the parameters.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        params: list[Tensor],
        state: Sequence[Mapping[str, Any] | None],
    ) -> None:
        if len(state) != len(params):
            raise ValueError(f"state of {len(state)} parameters for {len(params)}")
        self._optimizer = optimizer
        self._state: dict[Tensor, dict[str, Any]] = {}
        self.params = params
        for place, (param, kept) in enumerate(zip(params, state, strict=True)):
            if kept is None:
                continue
            wanted = {k: v.size for k, v in optimizer.rule.dense_slots(param.data).items()}
            given = {k: v.size for k, v in kept["slots"].items()}
            if given != wanted:
                raise ValueError(
                    f"parameter {place} here, of shape {param.shape}, keeps {wanted} values; the "
                    f"saved state has {given}"
                )
            self._state[param] = copy_state(kept)

    def publish(self) -> None:
        """Take the state over."""
        self._optimizer._bounds.clear()
        self._optimizer.state = self._state

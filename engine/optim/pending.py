"""A step that is worked out aside and takes effect later, all at once."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, final

from gradmesh.engine.autograd import Tensor
from gradmesh.engine.autograd.inplace import replace_memory
from gradmesh.engine.optim.optimizer import Optimizer


@final
class PendingStep:
    """New values and state of the parameters that have gradients; nothing is changed yet.

    Publishing puts new arrays in the place of the old ones. Graphs that were recorded before keep
    the old ones, as with `autograd.renew`, so their backward is not disturbed.

    Args:
        optimizer: Whose step it is.
        grads: Gradients by parameter.
        options: Options of each group for this step, such as its learning rate; those of the
            optimizer's groups if left out.

    Raises:
        Exception: Whatever the step raises; nothing is changed then.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        grads: Mapping[Any, Any],
        options: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        self._optimizer = optimizer
        groups = optimizer.param_groups
        if options is None:
            options = [{}] * len(groups)
        self._groups = [{**group, **own} for group, own in zip(groups, options, strict=True)]
        every = [param for group in groups for param in group["params"]]
        self._grads = {param: grads[param] for param in every if grads.get(param) is not None}
        self._work_out()

    @property
    def params(self) -> list[Tensor]:
        """The parameters that will change."""
        return list(self._grads)

    @property
    def is_current(self) -> bool:
        """Tell whether nobody has changed the parameters or their state meanwhile."""
        state = self._optimizer.state
        return all(
            param.data is data and state.get(param) is kept
            for param, (data, kept) in self._bases.items()
        )

    def publish(self) -> None:
        """Let the step take effect; on newer values, if there are some by now.

        The caller keeps others from changing the parameters meanwhile.
        """
        if not self.is_current:
            self._work_out()
        for param, twin in self._twins.items():
            replace_memory(param, twin.data)
            self._optimizer.state[param] = self._state[twin]
            self._optimizer._bounds.pop(param, None)

    def _work_out(self) -> None:
        optimizer = self._optimizer
        self._bases = {param: (param.data, optimizer.state.get(param)) for param in self._grads}
        self._twins = {param: Tensor(data.copy()) for param, (data, _) in self._bases.items()}
        scratch = copy.copy(optimizer)
        scratch._bounds, scratch._rules = {}, {}
        scratch.param_groups = [
            {**group, "params": [self._twins[p] for p in group["params"] if p in self._twins]}
            for group in self._groups
        ]
        scratch.state = {
            self._twins[param]: copy_state(kept)
            for param, (_, kept) in self._bases.items()
            if kept is not None
        }
        scratch.step({self._twins[param]: grad for param, grad in self._grads.items()})
        self._state = scratch.state


def copy_state(kept: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of a parameter with arrays of its own."""
    slots = {name: array.copy() for name, array in kept["slots"].items()}
    return {"step": kept["step"], "slots": slots}


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

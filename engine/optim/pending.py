"""Optimizer steps and loaded state that are prepared first and then take effect at once."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, final

from gradmesh.engine.autograd import Tensor
from gradmesh.engine.autograd.inplace import replace_memory
from gradmesh.engine.optim.optimizer import Optimizer


@final
class PendingStep:
    """Compute new values and state of the parameters that have gradients; change nothing yet.

    `publish` replaces the arrays by new ones. Graphs that were recorded before keep the old ones,
    as with `autograd.renew`, so their backward is not affected.

    Args:
        optimizer: Whose step it is.
        grads: Gradients by parameter.
        options: Options of each group for this step, such as its learning rate; those of the
            optimizer's groups if left out.

    Raises:
        Exception: The error of the step; nothing is changed then.
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
        self._compute()

    @property
    def params(self) -> list[Tensor]:
        """Return the parameters that will change."""
        return list(self._grads)

    @property
    def is_current(self) -> bool:
        """Return whether parameters and state are unchanged since the step was computed."""
        state = self._optimizer.state
        return all(
            param.data is data and state.get(param) is kept
            for param, (data, kept) in self._bases.items()
        )

    def publish(self) -> None:
        """Apply the step; compute it again if the parameters have changed since.

        The caller prevents concurrent changes of the parameters.
        """
        if not self.is_current:
            self._compute()
        for param, twin in self._twins.items():
            replace_memory(param, twin.data)
            self._optimizer.state[param] = self._state[twin]
            self._optimizer._bounds.pop(param, None)

    def _compute(self) -> None:
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
    """Check and copy state for an optimizer's parameters; change nothing yet.

    Args:
        optimizer: The optimizer.
        params: Its parameters.
        state: The state of each, None before its first step.

    Raises:
        ValueError: If it does not fit the parameters.
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
        for position, (param, kept) in enumerate(zip(params, state, strict=True)):
            if kept is None:
                continue
            wanted = {k: v.size for k, v in optimizer.rule.dense_slots(param.data).items()}
            given = {k: v.size for k, v in kept["slots"].items()}
            if given != wanted:
                raise ValueError(
                    f"parameter {position} here, of shape {param.shape}, keeps {wanted} values; "
                    f"the saved state has {given}"
                )
            self._state[param] = copy_state(kept)

    def publish(self) -> None:
        """Apply the state."""
        self._optimizer._bounds.clear()
        self._optimizer.state = self._state

"""An optimizer that averages parameters over ranks after its steps."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, final

from gradmesh.engine.autograd import Tensor
from gradmesh.engine.optim.optimizer import Optimizer
from gradmesh.trainer.ddp.model_averaging.averager import ModelAverager

_log = logging.getLogger(__name__)


@final
class PostLocalSGDOptimizer:
    """Step with another optimizer, then average parameters when the averager says so.

    Use it with `post_local_sgd_hook`, whose start_local_sgd_iter is the averager's warmup_steps:
    gradients are averaged until then, parameters from then on.

    Args:
        optim: Steps on this rank; its groups and state are this optimizer's, too.
        averager: When to average, and over which ranks.
    """

    def __init__(self, optim: Optimizer, averager: ModelAverager) -> None:
        self.optim = optim
        self.averager = averager
        self.param_groups = optim.param_groups

    @property
    def state(self) -> dict[Tensor, dict[str, Any]]:
        """The state of the optimizer that steps."""
        return self.optim.state

    def step(self, grads: Mapping[Any, Any] | None = None) -> None:
        """Update every parameter that has a gradient, and average if it is time.

        Args:
            grads: Gradients by parameter, instead of `.grad`.
        """
        self.optim.step(grads)
        self.averager.average_parameters(self.param_groups, grads)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients, or set them to 0 in place."""
        self.optim.zero_grad(set_to_none)

    def add_param_group(self, group: dict[str, Any]) -> None:
        """Add parameters with options of their own."""
        self.optim.add_param_group(group)

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state, and under "step" that of the averager."""
        return {**self.optim.state_dict(), "step": self.averager.step}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned; without "step" the averager begins again at 0."""
        self.optim.load_state_dict(state_dict)
        if "step" not in state_dict:
            _log.warning("the saved optimizer has no step of an averager; it begins again at 0")
        self.averager.step = int(state_dict.get("step", 0))

    def __repr__(self) -> str:
        return f"PostLocalSGDOptimizer({self.optim!r})"

"""Post-local SGD: replicas train locally and average their parameters periodically.

An averager decides when and over which ranks; PostLocalSGDOptimizer calls it after each step.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, final

from gradmesh.engine.autograd import Tensor
from gradmesh.engine.optim.optimizer import Optimizer
from gradmesh.trainer.ddp.comm_hooks.post_local_sgd import average_parameters
from gradmesh.trainer.process_group import ProcessGroup, default_group, new_subgroups

_log = logging.getLogger(__name__)


class ModelAverager(ABC):
    """Base of averagers, which periodically replace parameters by their averages over ranks.

    `step` counts the calls of `average_parameters`; save it in checkpoints.

    Args:
        warmup_steps: First steps in which nothing is averaged.
        process_group: All ranks; the default group if None.

    Raises:
        ValueError: If warmup_steps is negative.
    """

    def __init__(self, warmup_steps: int = 0, process_group: ProcessGroup | None = None) -> None:
        if warmup_steps < 0:
            raise ValueError(f"warmup_steps is {warmup_steps}; use 0 or more")
        self.warmup_steps = warmup_steps
        self.process_group = default_group() if process_group is None else process_group
        self.step = 0

    def average_parameters(
        self, params: Iterable[Any], grads: Mapping[Any, Any] | None = None
    ) -> None:
        """Average if this step is due, and count the step; collective if it averages.

        Args:
            params: Parameters, or an optimizer's groups; those without a gradient do not change,
                so ranks must have gradients for the same ones.
            grads: Gradients by parameter, instead of `.grad`.
        """
        group = self.group_of_step() if self.step >= self.warmup_steps else None
        if group is not None:
            with_gradient = [p for p in _flattened(params) if _has_gradient(p, grads)]
            average_parameters(with_gradient, group)
        self.step += 1

    @abstractmethod
    def group_of_step(self) -> ProcessGroup | None:
        """Return the ranks to average over at this step, or None."""


@final
class PeriodicModelAverager(ModelAverager):
    """Average over all ranks at every `period`-th step after the warm-up.

    Args:
        period: Steps from one average to the next.
        warmup_steps: See ModelAverager.
        process_group: See ModelAverager.

    Raises:
        ValueError: If period is below 1 or warmup_steps is negative.
    """

    def __init__(
        self, period: int, warmup_steps: int = 0, process_group: ProcessGroup | None = None
    ) -> None:
        if period < 1:
            raise ValueError(f"period is {period}; use 1 or more")
        super().__init__(warmup_steps, process_group)
        self.period = period
        warn_if_always(period)

    def group_of_step(self) -> ProcessGroup | None:
        """Return all ranks if the period has passed."""
        is_due = (self.step - self.warmup_steps) % self.period == 0
        return self.process_group if is_due else None


def warn_if_always(longest_period: int) -> None:
    """Warn that averaging parameters at every step costs as much as averaging gradients."""
    if longest_period == 1:
        _log.warning("model averaging at every step sends no less than DDP alone; leave it out")


def _flattened(params: Iterable[Any]) -> Iterable[Tensor]:
    for entry in params:
        if isinstance(entry, Tensor):
            yield entry
        elif isinstance(entry, Mapping):
            yield from entry["params"]
        else:
            raise TypeError(
                f"average_parameters takes parameters or an optimizer's groups, not"
                f" {type(entry).__name__}"
            )


def _has_gradient(parameter: Tensor, grads: Mapping[Any, Any] | None) -> bool:
    return (parameter.grad if grads is None else grads.get(parameter)) is not None


@final
class PostLocalSGDOptimizer:
    """Step with another optimizer, then average parameters when the averager is due.

    Use it with `post_local_sgd_hook`, whose start_local_sgd_iter is the averager's warmup_steps:
    gradients are averaged until then, parameters from then on.

    Args:
        optim: Steps on this rank; its groups and state are those of this optimizer, too.
        averager: Decides when to average, and over which ranks.
    """

    def __init__(self, optim: Optimizer, averager: ModelAverager) -> None:
        self.optim = optim
        self.averager = averager
        self.param_groups = optim.param_groups

    @property
    def state(self) -> dict[Tensor, dict[str, Any]]:
        """The state of the wrapped optimizer."""
        return self.optim.state

    def step(self, grads: Mapping[Any, Any] | None = None) -> None:
        """Update every parameter that has a gradient, and average if this step is due.

        Args:
            grads: Gradients by parameter, instead of `.grad`.
        """
        self.optim.step(grads)
        self.averager.average_parameters(self.param_groups, grads)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop all gradients, or set them to 0 in place."""
        self.optim.zero_grad(set_to_none)

    def add_param_group(self, group: dict[str, Any]) -> None:
        """Add parameters with their own options."""
        self.optim.add_param_group(group)

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state, with the averager's step under "step"."""
        return {**self.optim.state_dict(), "step": self.averager.step}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load what `state_dict` returned; without "step" the averager restarts at 0."""
        self.optim.load_state_dict(state_dict)
        if "step" not in state_dict:
            _log.warning("the saved optimizer has no step of an averager; it restarts at 0")
        self.averager.step = int(state_dict.get("step", 0))

    def __repr__(self) -> str:
        return f"PostLocalSGDOptimizer({self.optim!r})"


@final
class HierarchicalModelAverager(ModelAverager):
    """Average over groups of several sizes, each with its own period.

    Construction is collective. At a step that several periods divide, the last of them in the order
    of the mapping is used. Steps are counted from 0, warm-up included.

    Args:
        period_group_size_dict: Group sizes by period, from the most frequent to the last, which
            is all ranks. A size divides the number of ranks.
        warmup_steps: See ModelAverager.
        process_group: See ModelAverager.

    Raises:
        ValueError: If a period or a size is invalid; no group is created then.
    """

    def __init__(
        self,
        period_group_size_dict: Mapping[int, int],
        warmup_steps: int = 0,
        process_group: ProcessGroup | None = None,
    ) -> None:
        super().__init__(warmup_steps, process_group)
        sizes = dict(period_group_size_dict)
        _check(sizes, self.process_group.size)
        warn_if_always(list(sizes)[-1])
        self.period_process_group_dict = {
            period: self.process_group
            if size == self.process_group.size
            else new_subgroups(size, self.process_group)
            for period, size in sizes.items()
        }

    def group_of_step(self) -> ProcessGroup | None:
        """Return the group of the last period that divides the step."""
        for period in reversed(self.period_process_group_dict):
            if self.step % period == 0:
                return self.period_process_group_dict[period]
        return None


def _check(sizes: Mapping[int, int], world_size: int) -> None:
    if not sizes:
        raise ValueError("period_group_size_dict is empty; give group sizes by period")
    if min(sizes) < 1:
        raise ValueError(f"a period of {min(sizes)} steps; use 1 or more")
    last = list(sizes.values())[-1]
    if last != world_size:
        raise ValueError(
            f"the last group of period_group_size_dict has {last} ranks; it must have all"
            f" {world_size} of the process group"
        )
    for size in sizes.values():
        if size < 1 or world_size % size:
            raise ValueError(f"groups of {size} cannot be cut from {world_size} ranks evenly")

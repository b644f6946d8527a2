"""When parameters are averaged, and over which ranks."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, final

from gradmesh.engine.autograd import Tensor
from gradmesh.trainer.ddp.comm_hooks.post_local_sgd import average_parameters
from gradmesh.trainer.process_group import ProcessGroup, default_group

_log = logging.getLogger(__name__)


class ModelAverager(ABC):
    """Replace parameters by their averages over ranks, now and then.

    `step` counts the calls of `average_parameters`; it belongs in checkpoints.

    Args:
        warmup_steps: Steps at the beginning in which nothing is averaged.
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
        """Average if it is time, and count the step; collective if it averages.

        Args:
            params: Parameters, or an optimizer's groups; those without a gradient stay as they
                are, so ranks must have gradients for the same ones.
            grads: Gradients by parameter, instead of `.grad`.
        """
        group = self.group_now() if self.step >= self.warmup_steps else None
        if group is not None:
            held = [p for p in _flattened(params) if _has_gradient(p, grads)]
            average_parameters(held, group)
        self.step += 1

    @abstractmethod
    def group_now(self) -> ProcessGroup | None:
        """Return the ranks to average over at this step, None for a step without an average."""


@final
class PeriodicModelAverager(ModelAverager):
    """Average over all ranks at every `period`-th step after the warm-up.

    Args:
        period: Steps from one average to the next.
        warmup_steps: As of ModelAverager.
        process_group: As of ModelAverager.

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

    def group_now(self) -> ProcessGroup | None:
        """Return all ranks if the period is over."""
        is_due = (self.step - self.warmup_steps) % self.period == 0
        return self.process_group if is_due else None


def warn_if_always(longest_period: int) -> None:
    """Log that averaging parameters at every step costs no less than averaging gradients."""
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

"""The learning rates of a job: as its settings say, or as suits its optimizers."""

import math
from dataclasses import dataclass, replace
from typing import final

from gradmesh.trainer.job.config import JobConfig

# Found on generated clicks of one seed and looked at on others: docs/training.md has the figures.
# Plain SGD takes the mean over the batch, of which a row sees a small share: hence its large rate.
_DENSE = {"sgd": 1.0, "adagrad": 0.05, "adam": 0.004}
_TABLES = {"sgd": 10.0, "adagrad": 0.05, "rowwise-adagrad": 0.05, "adam": 0.002}
_LAST_SHARE = 1 / 40


@final
@dataclass(frozen=True, slots=True)
class Rates:
    """Numbers for every learning rate.

    Attributes:
        first: Of the dense layers when warm-up is over.
        last: Of the dense layers at the end.
        tables: Of the tables' rows at first.
    """

    first: float
    last: float
    tables: float


def rates_of(job: JobConfig) -> Rates:
    """Return a job's learning rates, also those that its settings leave open."""
    first = _or(job.learning_rate, _DENSE[job.optimizer])
    return Rates(
        first=first,
        last=_or(job.final_learning_rate, first * _LAST_SHARE),
        tables=_or(job.table_learning_rate, _TABLES[job.table_optimizer]),
    )


def settled(job: JobConfig) -> JobConfig:
    """Return the settings with nothing left open, for reports and for runs that go on later."""
    rates = rates_of(job)
    return replace(
        job,
        learning_rate=rates.first,
        final_learning_rate=rates.last,
        table_learning_rate=rates.tables,
    )


def dense_rate(job: JobConfig, rates: Rates, step: int, steps: int) -> float:
    """Return the dense layers' learning rate at a step.

    Args:
        job: The settings: warm-up and schedule.
        rates: Between which it goes.
        step: From 0.
        steps: Of the whole job.
    """
    if step < job.warmup_steps:
        return rates.first * (step + 1) / (job.warmup_steps + 1)
    if job.schedule == "constant":
        return rates.first
    share = (step - job.warmup_steps) / max(1, steps - job.warmup_steps)
    if job.schedule == "cosine":
        share = (1 - math.cos(math.pi * share)) / 2
    return rates.first + (rates.last - rates.first) * share


def _or(given: float | None, otherwise: float) -> float:
    return otherwise if given is None else given

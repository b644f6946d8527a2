"""The spec of a job: its settings, with every learning rate resolved."""

import math
from dataclasses import dataclass, field, replace
from typing import Any, final

from gradmesh.sdk.process.config import Sections, load, section_as_dict
from gradmesh.sdk.process.setting import Section
from gradmesh.trainer.data import DataConfig, Source
from gradmesh.trainer.job.config import JobConfig
from gradmesh.trainer.models import ModelConfig

# Tuned on generated clicks of one seed and checked on others: docs/training.md has the figures.
# Plain SGD averages over the batch, of which a row sees a small share: hence its large rate.
_DENSE = {"sgd": 1.0, "adagrad": 0.05, "adam": 0.004}
_TABLES = {"sgd": 10.0, "adagrad": 0.05, "rowwise-adagrad": 0.05, "adam": 0.002}
_LAST_SHARE = 1 / 40


@final
@dataclass(frozen=True, slots=True)
class Rates:
    """The learning rates of a job.

    Attributes:
        first: Of the dense layers after warm-up.
        last: Of the dense layers at the end.
        tables: Of the tables' rows at first.
    """

    first: float
    last: float
    tables: float


def rates_of(job: JobConfig) -> Rates:
    """Return a job's learning rates, with defaults for those that its settings leave open."""
    first = _or(job.learning_rate, _DENSE[job.optimizer])
    return Rates(
        first=first,
        last=_or(job.final_learning_rate, first * _LAST_SHARE),
        tables=_or(job.table_learning_rate, _TABLES[job.table_optimizer]),
    )


def resolved(job: JobConfig) -> JobConfig:
    """Return the settings with every learning rate set, for reports and for resumed runs."""
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
        rates: The first and the last rate.
        step: From 0.
        steps: Steps of the whole job.
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


JOB_SECTIONS: tuple[type[Section], ...] = (JobConfig, DataConfig, ModelConfig)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """The tables [job], [data] and [model] of the settings."""

    job: JobConfig = field(default_factory=JobConfig)
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)

    def __post_init__(self) -> None:
        # Resolve what settings leave open once, so that reports and resumed runs have the numbers.
        object.__setattr__(self, "job", resolved(self.job))

    @property
    def rates(self) -> Rates:
        """The learning rates."""
        return rates_of(self.job)

    def source(self) -> Source:
        """Open the data.

        Raises:
            DataError: They are missing, or do not match the settings.
        """
        return Source(self.data, self.job.seed)

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """Return all settings as JSON holds them."""
        return {s.section: section_as_dict(s) for s in (self.job, self.data, self.model)}

    @classmethod
    def from_dict(cls, plain: dict[str, dict[str, Any]]) -> "JobSpec":
        """Return the job spec that `as_dict` described.

        Raises:
            ConfigError: A setting is unknown or wrong.
        """
        flags = {
            f"{section}.{key}": list(value) if isinstance(value, tuple) else value
            for section, table in plain.items()
            for key, value in table.items()
        }
        return job_spec_of(load(JOB_SECTIONS, flags=flags))


def job_spec_of(sections: Sections) -> JobSpec:
    """Return the job that loaded settings describe."""
    return JobSpec(job=sections[JobConfig], data=sections[DataConfig], model=sections[ModelConfig])


def steps_of(job: JobConfig, samples: int | None, world_size: int) -> int:
    """Return the number of steps of a job.

    Args:
        job: The settings.
        samples: Samples of an epoch; None if the data never end: an epoch is then `steps` steps.
        world_size: Trainers that share an epoch.
    """
    if not job.epochs:
        return job.steps
    if samples is None:
        return max(1, round(job.epochs * job.steps))
    return max(1, -(-round(job.epochs * samples) // (job.batch_size * world_size)))

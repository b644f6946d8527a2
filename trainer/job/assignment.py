"""A job as a whole: what to train, on which data, how."""

from dataclasses import dataclass, field
from typing import Any, final

from gradmesh.sdk.process.config import Sections, load, section_as_dict
from gradmesh.sdk.process.setting import Section
from gradmesh.trainer.data import DataConfig, Source
from gradmesh.trainer.job.config import JobConfig
from gradmesh.trainer.job.rates import Rates, rates_of, settled
from gradmesh.trainer.models import ModelConfig

JOB_SECTIONS: tuple[type[Section], ...] = (JobConfig, DataConfig, ModelConfig)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The tables [job], [data] and [model] of the settings."""

    job: JobConfig = field(default_factory=JobConfig)
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)

    def __post_init__(self) -> None:
        # What settings leave open is decided once, so that reports and later runs have the numbers.
        object.__setattr__(self, "job", settled(self.job))

    @property
    def rates(self) -> Rates:
        """The learning rates."""
        return rates_of(self.job)

    def source(self) -> Source:
        """Open the data.

        Raises:
            DataError: They are not there, or not as the settings say.
        """
        return Source(self.data, self.job.seed)

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """Return all settings as JSON holds them."""
        return {s.section: section_as_dict(s) for s in (self.job, self.data, self.model)}

    @classmethod
    def from_dict(cls, plain: dict[str, dict[str, Any]]) -> "Assignment":
        """Return the assignment that `as_dict` described.

        Raises:
            ConfigError: A setting is unknown or wrong.
        """
        flags = {
            f"{section}.{key}": list(value) if isinstance(value, tuple) else value
            for section, table in plain.items()
            for key, value in table.items()
        }
        return assignment_of(load(JOB_SECTIONS, flags=flags))


def assignment_of(sections: Sections) -> Assignment:
    """Return the job that loaded settings describe."""
    return Assignment(
        job=sections[JobConfig], data=sections[DataConfig], model=sections[ModelConfig]
    )


def steps_of(job: JobConfig, samples: int | None, world_size: int) -> int:
    """Return how many steps a job has.

    Args:
        job: The settings.
        samples: Of an epoch; None if the data never end, which makes an epoch `steps` steps.
        world_size: How many trainers share an epoch.
    """
    if not job.epochs:
        return job.steps
    if samples is None:
        return max(1, round(job.epochs * job.steps))
    return max(1, -(-round(job.epochs * samples) // (job.batch_size * world_size)))

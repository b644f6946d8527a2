"""Settings of the training job."""

from dataclasses import dataclass
from typing import ClassVar, final

from gradmesh.sdk.process.setting import Section, setting


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class JobConfig(Section):
    """The [job] table."""

    section: ClassVar[str] = "job"

    steps: int = setting(200, "Optimizer steps to train.", minimum=1)
    seed: int = setting(0, "Seed of data and parameters.", minimum=0)

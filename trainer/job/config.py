"""Settings of the training job."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, final

from gradmesh.sdk.process.errors import Problem
from gradmesh.sdk.process.setting import Section, setting
from gradmesh.trainer.data import ClickSpec

_CLICKS = ClickSpec()


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class JobConfig(Section):
    """The [job] table."""

    section: ClassVar[str] = "job"

    steps: int = setting(2000, "Optimizer steps to train.", minimum=1)
    batch_size: int = setting(512, "Samples of one trainer in one step.", minimum=1)
    seed: int = setting(0, "Seed of data, tables and parameters.", minimum=0, maximum=2**31 - 1)
    learning_rate: float = setting(1.0, "Learning rate of the dense layers at first.", minimum=0)
    final_learning_rate: float = setting(
        0.05, "Learning rate of the dense layers at the end; it falls in a line.", minimum=0
    )
    table_learning_rate: float = setting(50.0, "Learning rate of the tables' rows.", minimum=0)
    rows: tuple[int, ...] = setting(
        _CLICKS.rows, "Rows of the table of each categorical feature.", minimum=1
    )
    dim: int = setting(16, "Elements in a row.", minimum=1, maximum=4096)
    row_bound: float = setting(0.05, "Initial rows are uniform between plus and minus this.")
    dense_features: int = setting(
        _CLICKS.dense_features, "Numbers that come with each sample.", minimum=1
    )
    bottom: tuple[int, ...] = setting(
        (32,), "Widths of the hidden layers for dense features.", minimum=1
    )
    top: tuple[int, ...] = setting(
        (64, 32), "Widths of the hidden layers for interactions.", minimum=1
    )
    alpha: float = setting(
        _CLICKS.alpha, "Exponent of the ids' power law; 0 is uniform.", minimum=0, maximum=10
    )
    eval_batches: int = setting(200, "Held-out batches that the result is measured on.", minimum=1)
    log_every: int = setting(20, "Steps between two reports of progress.", minimum=1)
    prefetch_depth: int = setting(
        0,
        "Batches whose rows are fetched ahead of their step; the result is the same.",
        minimum=0,
        maximum=16,
    )
    collective_timeout_s: float = setting(
        30.0, "Seconds to wait for the other trainers in a step.", minimum=0.1, maximum=86400
    )
    max_restarts: int = setting(
        50, "How often the trainers may join again after a process was lost.", minimum=0
    )

    checkpoint_path: str | None = setting(
        None, "Folder or fsspec URL for checkpoints of the whole run; none writes none."
    )
    checkpoint_every_steps: int = setting(
        0, "Steps between two checkpoints; 0 counts no steps.", minimum=0
    )
    checkpoint_every_s: float = setting(
        0.0, "Seconds between two checkpoints; 0 looks at no clock.", minimum=0
    )
    checkpoint_keep: int = setting(3, "Newest checkpoints that are kept.", minimum=1)
    checkpoint_chain: int = setting(
        8, "How often a checkpoint only adds to the one before, until a full one.", minimum=0
    )
    checkpoint_timeout_s: float = setting(
        3600.0, "Seconds that a checkpoint may take.", minimum=0.1, maximum=864000
    )
    resume: str = setting(
        "never",
        "Where a job begins whose trainers have nothing to go on with: at its first step (never), "
        "at the newest checkpoint in checkpoint_path (auto), or at the one in this folder or URL.",
    )

    def problems(self) -> Iterable[Problem]:
        """Yield what is wrong between the fields."""
        if not self.rows:
            yield Problem("rows", "must name at least one table, such as 1000,500")
        if self.final_learning_rate > self.learning_rate:
            yield Problem("final_learning_rate", "must not exceed learning_rate; lower it")
        if self.row_bound <= 0:
            yield Problem("row_bound", "must be positive")
        periodic = self.checkpoint_every_steps or self.checkpoint_every_s
        if self.checkpoint_path is None and (periodic or self.resume == "auto"):
            yield Problem("checkpoint_path", "must say where checkpoints are; set it")

    def clicks(self) -> ClickSpec:
        """Return what the job's data look like."""
        return ClickSpec(
            seed=self.seed,
            dense_features=self.dense_features,
            rows=self.rows,
            alpha=self.alpha,
        )

    def learning_rate_at(self, step: int) -> float:
        """Return the dense layers' learning rate at a step."""
        share = step / self.steps
        return self.learning_rate + (self.final_learning_rate - self.learning_rate) * share

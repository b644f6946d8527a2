"""Settings of the training job."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, TypeAlias, final

from gradmesh.protos.errors import InvalidRequest
from gradmesh.protos.limits import check_name
from gradmesh.sdk.process.setting import Problem, Section, setting

Shape: TypeAlias = Literal["linear", "cosine", "constant"]
TableOptimizer: TypeAlias = Literal["sgd", "adagrad", "rowwise-adagrad", "adam"]
WirePrecision: TypeAlias = Literal["float32", "float16", "bfloat16", "int8"]


def job_id(value: str) -> str:
    """Check a job's name.

    Raises:
        ValueError: It is not a valid name.
    """
    try:
        check_name("job", value)
    except InvalidRequest as error:
        raise ValueError(error.message) from None
    return value


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class JobConfig(Section):
    """The [job] table."""

    section: ClassVar[str] = "job"

    id: str | None = setting(
        None,
        "Name of this job, never reused in the cluster: a trainer that joins after the job has its "
        "result ends at once.",
        check=job_id,
    )
    steps: int = setting(2000, "Optimizer steps to train.", minimum=1)
    epochs: float = setting(
        0.0, "Passes over the training files; 0 counts steps instead.", minimum=0
    )
    batch_size: int = setting(512, "Samples per trainer and step.", minimum=1)
    seed: int = setting(0, "Seed of data, tables and parameters.", minimum=0, maximum=2**31 - 1)
    optimizer: Literal["sgd", "adagrad", "adam"] = setting("adam", "Optimizer of the dense layers.")
    learning_rate: float | None = setting(
        None,
        "Initial learning rate of the dense layers; the default suits the optimizer.",
        minimum=0,
    )
    final_learning_rate: float | None = setting(
        None,
        "Final learning rate of the dense layers; a fortieth of the initial one by default.",
        minimum=0,
    )
    schedule: Shape = setting(
        "linear", "Schedule of the dense layers' learning rate from initial to final."
    )
    warmup_steps: int = setting(
        0, "Steps in which the dense layers' learning rate rises to the initial one.", minimum=0
    )
    clip_norm: float = setting(
        0.0, "Largest norm of the dense layers' averaged gradients; 0 for no limit.", minimum=0
    )
    table_optimizer: TableOptimizer = setting("adagrad", "Optimizer of the tables' rows.")
    table_learning_rate: float | None = setting(
        None,
        "Initial learning rate of the tables' rows; the default suits the optimizer.",
        minimum=0,
    )
    table_final_learning_rate: float = setting(
        0.0, "Final learning rate of the tables' rows.", minimum=0
    )
    table_schedule: Shape = setting(
        "constant", "Schedule of the tables' learning rate from initial to final."
    )
    staleness: int = setting(
        0,
        "Steps that a trainer's rows may be ahead of the slowest trainer's, each applying its own"
        " gradients in full; 0 is synchronous and exact.",
        minimum=0,
        maximum=1000,
    )
    wire_rows: WirePrecision = setting("float32", "Precision of the rows sent to the trainers.")
    wire_grads: WirePrecision = setting(
        "float32", "Precision of the gradients sent to the servers."
    )
    ddp: Literal["whole", "dense", "none"] = setting(
        "whole",
        "What DDP wraps: the whole model, each of its dense parts, or nothing, so that each trainer"
        " has dense layers of its own.",
    )
    eval_every: int = setting(0, "Steps between two evaluations on the validation data.", minimum=0)
    eval_batches: int = setting(
        200, "Held-out batches on which results are measured; 0 for all files.", minimum=0
    )
    eval_auc: Literal["exact", "streaming"] = setting(
        "exact", "How AUC is computed; streaming needs little memory, with an error of 1e-5."
    )
    patience: int = setting(
        0,
        "Evaluations in a row without a better log loss after which training ends; 0: never.",
        minimum=0,
    )
    log_every: int = setting(20, "Steps between two reports of progress.", minimum=1)
    prefetch_depth: int = setting(
        0,
        "Batches whose rows are prefetched; the result is the same.",
        minimum=0,
        maximum=16,
    )
    output: Path | None = setting(
        None, "Folder for metrics, report and model, written by rank 0; none writes nothing."
    )
    tensorboard: bool = setting(
        False, "Whether to write TensorBoard event files to the output folder."
    )
    save_model: bool = setting(True, "Whether to write the trained model to the output folder.")
    collective_timeout_s: float = setting(
        30.0, "Seconds to wait for the other trainers in a step.", minimum=0.1, maximum=86400
    )
    max_restarts: int = setting(
        50, "How often the trainers may rejoin after the loss of a process.", minimum=0
    )

    checkpoint_path: str | None = setting(
        None, "Folder or fsspec URL for checkpoints of the whole run; none disables them."
    )
    checkpoint_every_steps: int = setting(
        0, "Steps between two checkpoints; 0 for no such interval.", minimum=0
    )
    checkpoint_every_s: float = setting(
        0.0, "Seconds between two checkpoints; 0 for no such interval.", minimum=0
    )
    checkpoint_keep: int = setting(3, "Number of newest checkpoints to keep.", minimum=1)
    checkpoint_keep_s: float = setting(
        0.0, "Seconds for which further checkpoints are kept.", minimum=0
    )
    checkpoint_chain: int = setting(8, "Delta checkpoints between two full ones.", minimum=0)
    checkpoint_timeout_s: float = setting(
        3600.0, "Seconds that a checkpoint may take.", minimum=0.1, maximum=864000
    )
    resume: str = setting(
        "never",
        "Start of a job whose trainers hold no state: its first step (never), the newest "
        "checkpoint in checkpoint_path (auto), or the checkpoint in this folder or URL.",
    )

    def problems(self) -> Iterable[Problem]:
        """Yield contradictions between the fields."""
        first, last = self.learning_rate, self.final_learning_rate
        rises = first is not None and last is not None and last > first
        if rises and self.schedule != "constant":
            yield Problem("final_learning_rate", "must not exceed learning_rate; lower it")
        if self.table_schedule == "constant" and self.table_final_learning_rate:
            yield Problem("table_final_learning_rate", "needs table_schedule linear or cosine")
        if self.patience and not self.eval_every:
            yield Problem("patience", "needs eval_every, which sets the interval")
        if self.staleness and self.checkpoint_path is not None:
            yield Problem(
                "staleness", "must be 0 with checkpoint_path: a consistent cut needs sync steps"
            )
        periodic = self.checkpoint_every_steps or self.checkpoint_every_s
        if self.checkpoint_path is None and (periodic or self.resume == "auto"):
            yield Problem("checkpoint_path", "must name the checkpoint store; set it")

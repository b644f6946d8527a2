"""Train a job on a cluster of this machine, and follow it."""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

from gradmesh.engine.backend import Generator
from gradmesh.engine.nn import Module
from gradmesh.launch.errors import ClusterFailed
from gradmesh.launch.local import LocalCluster
from gradmesh.launch.sections import SECTION_NAMES
from gradmesh.launch.supervisor import RestartPolicy
from gradmesh.protos.errors import MeshError
from gradmesh.sdk.cluster.status import ClusterStatus, fetch
from gradmesh.sdk.process.config import load
from gradmesh.sdk.process.network import SecurityConfig
from gradmesh.trainer.data.source import build_vocabulary
from gradmesh.trainer.job.metrics_log import read_metrics_log
from gradmesh.trainer.job.spec import JOB_SECTIONS, JobSpec, job_spec_of
from gradmesh.trainer.models import build_model
from gradmesh.trainer.models.config import MODEL_NAMES

_POLL_S = 0.25
_ASK_S = 2.0

OnMetrics = Callable[[dict[str, Any]], object]


@final
@dataclass(frozen=True, slots=True)
class TrainingResult:
    """The result of a job.

    Args:
        figures: Results by name, such as AUC and log loss.
        history: One dict for each report: kind, step, time and numbers.
        output: Folder of report and model; None if none was requested.
    """

    figures: Mapping[str, float]
    history: list[dict[str, Any]] = field(repr=False)
    output: Path | None


def train(
    job: str | Path | Mapping[str, Mapping[str, Any]],
    *,
    trainers: int = 2,
    parameter_servers: int = 2,
    output: str | Path | None = None,
    on_metrics: OnMetrics = lambda line: None,
) -> TrainingResult:
    """Train a job on a cluster of this machine, from start to finish.

    Args:
        job: A TOML file as for `gradmesh train`, or its tables as dicts:
            `{"job": {"steps": 100}, "data": {...}, "model": {...}}`.
        trainers: Number of trainers.
        parameter_servers: Number of parameter servers.
        output: Folder for metrics, report and model; by default nothing is stored.
        on_metrics: Called with each report of progress.

    Raises:
        ConfigError: The settings are wrong; names each key and the accepted values.
        DataError: The data cannot be used.
        ClusterFailed: A process could not continue; has the tail of its log.
    """
    file = Path(job) if isinstance(job, str | Path) else None
    given = {} if isinstance(job, str | Path) else _flat(job)
    spec = read_job_spec(file, given)
    prepare(spec)
    kept = spec.job.output if output is None else Path(output).absolute()
    with tempfile.TemporaryDirectory(prefix="gradmesh-train-") as scratch:
        folder = kept or Path(scratch)
        given |= {"job.output": folder, "job.save_model": kept is not None}
        cluster = LocalCluster(
            parameter_servers=parameter_servers,
            trainers=trainers,
            config=file,
            settings=given,
            policy=RestartPolicy(most_in_a_row=2),
        )
        with cluster:
            *_, last = watch(cluster, folder, on_metrics)
        return TrainingResult(result_of(last), read_metrics_log(folder), kept)


def watch(
    cluster: LocalCluster,
    folder: Path | None = None,
    on_metrics: OnMetrics = lambda line: None,
    is_stopping: Callable[[], bool] = lambda: False,
) -> Iterator[ClusterStatus]:
    """Yield the status of a cluster several times a second until its trainers are done.

    Args:
        cluster: A running cluster.
        folder: Output folder of its job, for `on_metrics`.
        on_metrics: Called with each report of progress.
        is_stopping: Returns True to end early.

    Raises:
        ClusterFailed: The cluster ended before the job was done.
    """
    reported = 0
    status = ClusterStatus()
    while True:
        is_over = is_stopping() or cluster.work_done
        if not is_over:
            outcome = cluster.wait(_POLL_S)
            if outcome is not None:
                raise cluster.failure(outcome)
        status = _ask(cluster, status)
        yield status
        if folder is not None:
            lines = read_metrics_log(folder)
            # After a fault the last reports are repeated, and the file is shorter for a while.
            reported = min(reported, len(lines))
            for line in lines[reported:]:
                on_metrics(line)
            reported = len(lines)
        if is_over:
            return


def result_of(status: ClusterStatus) -> dict[str, float]:
    """Return the results of a finished job.

    Raises:
        ClusterFailed: There are none.
    """
    if not status.result:
        raise ClusterFailed("the trainers ended without a result; see their logs", 4)
    return {"bytes_moved": status.bytes_moved, **status.result}


def read_job_spec(file: Path | None, settings: Mapping[str, Any]) -> JobSpec:
    """Return the job of a file and of settings by `section.key`, which override the file.

    Raises:
        ConfigError: A setting is wrong.
    """
    own = {section.section for section in JOB_SECTIONS}
    flags = {key: value for key, value in settings.items() if key.partition(".")[0] in own}
    return job_spec_of(load(JOB_SECTIONS, flags=flags, file=file, known=SECTION_NAMES))


def prepare(spec: JobSpec) -> None:
    """Build the vocabulary if the job needs one that is missing; check the data and the model.

    Errors are then reported before any process starts. Only the trainers import a model of the
    user.

    Raises:
        DataError: The data cannot be read.
        ConfigError: The model does not fit them.
    """
    data = spec.data
    if data.ids == "vocabulary" and data.vocabulary is not None and not data.vocabulary.exists():
        build_vocabulary(data).save(data.vocabulary)
    fields = spec.source().fields
    if spec.model.name in MODEL_NAMES:
        build_model(spec.model, fields, Module(), Generator(spec.job.seed))


def _flat(tables: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {
        f"{section}.{key}": list(value) if isinstance(value, tuple) else value
        for section, table in tables.items()
        for key, value in table.items()
    }


def _ask(cluster: LocalCluster, last: ClusterStatus) -> ClusterStatus:
    try:
        return with_last_progress(last, fetch(cluster.address, SecurityConfig(), _ASK_S))
    except (MeshError, RuntimeError):
        # The coordinator may be restarting; the supervisor decides whether it is lost.
        return last


def with_last_progress(last: ClusterStatus, new: ClusterStatus) -> ClusterStatus:
    """Return the new status, with the last known progress where the new one has none.

    Trainers leave when they are done, and a restarted coordinator waits for their next report;
    neither should reset the progress bar.
    """
    if new.total_steps or not last.total_steps:
        return new
    return replace(
        new,
        step=last.total_steps if new.result else last.step,
        total_steps=last.total_steps,
        loss=last.loss,
        samples_per_s=last.samples_per_s,
        bytes_moved=last.bytes_moved,
    )

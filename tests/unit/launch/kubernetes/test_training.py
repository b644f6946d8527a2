"""A job's history, read from the log of its first trainer."""

import json
from pathlib import Path
from typing import Any

import pytest

from gradmesh.launch.kubernetes.errors import NotOnKubernetes
from gradmesh.launch.kubernetes.training import LogHistory, cluster_name, collect
from gradmesh.trainer.job.config import JobConfig
from gradmesh.trainer.job.spec import JobSpec


def line(message: str, **fields: Any) -> str:
    head = {"ts": "2026-01-02T03:04:05.000+00:00", "level": "info", "role": "trainer-0"}
    return json.dumps({**head, "name": "x", "message": message, **fields})


def test_progress_becomes_history() -> None:
    history = LogHistory()

    for one in (
        "no json",
        line("joined", generation=1),
        line("trained", step=10, loss=0.5, samples_per_s=100, learning_rate=0.1),
        line("validated", step=10, auc=0.6, log_loss=0.5),
        line("done", figures={"auc": 0.7}),
    ):
        history.add(one)

    assert [(x["kind"], x.get("step")) for x in history.lines] == [
        ("train", 10),
        ("validation", 10),
        ("result", None),
    ]
    assert history.lines[0]["loss"] == 0.5
    assert history.figures == {"auc": 0.7}


def test_a_step_repeated_after_a_loss_is_written_once() -> None:
    history = LogHistory()

    for step in (10, 20, 30, 20, 30):
        history.add(line("trained", step=step, loss=step / 100))

    assert [x["step"] for x in history.lines] == [10, 20, 30]


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("clicks.toml", "clicks"),
        ("My Job_2.toml", "my-job-2"),
        ("criteo/job.toml", "criteo"),
        ("2024.toml", "job-2024"),
        ("x" * 80 + ".toml", "x" * 40),
    ],
)
def test_names_are_labels(file: str, name: str) -> None:
    assert cluster_name(Path(file)) == name


def test_checkpoints_in_a_folder_of_this_machine_are_refused(tmp_path: Path) -> None:
    spec = JobSpec(job=JobConfig(checkpoint_path="runs"))
    (tmp_path / "job.toml").write_text("")

    with pytest.raises(NotOnKubernetes, match=r"checkpoint_path is 'runs'.*bucket"):
        collect(tmp_path / "job.toml", spec, ())

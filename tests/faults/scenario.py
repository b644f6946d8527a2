"""Training in real processes that die at planned points, and the outcome of the run."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gradmesh.launch.local import LocalCluster
from gradmesh.protos.errors import MeshError
from gradmesh.sdk.cluster.status import ClusterStatus, fetch
from gradmesh.sdk.mesh.connect import connect
from gradmesh.sdk.process.fault import PlannedFault
from gradmesh.sdk.process.network import SecurityConfig
from gradmesh.trainer.data import ClickSpec

JOB = {"job.steps": 30, "job.batch_size": 64, "job.eval_batches": 3, "job.log_every": 1}

TRAINER_POINTS = ("before-push", "before-apply", "between-servers", "after-apply", "after-step")
SERVER_POINTS = ("staged", "before-prepare", "prepared", "before-commit", "committed")
COORDINATOR_POINTS = ("reported",)


@dataclass(frozen=True)
class Outcome:
    """The result of a run.

    Attributes:
        figures: Metrics of the result that depend on every bit of the model.
        tables: All rows.
        restarts: How often each process was started again.
        began_at: The steps at which generations began.
    """

    figures: Mapping[str, float]
    tables: Mapping[str, bytes]
    restarts: Mapping[str, int]
    began_at: tuple[int, ...]


def wait_for(what: str, condition: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen in {seconds} s"
        time.sleep(0.05)


def status_of(cluster: LocalCluster) -> ClusterStatus:
    try:
        return fetch(cluster.address, SecurityConfig(), 5.0)
    except MeshError:
        return ClusterStatus()


def read_tables(address: str) -> dict[str, bytes]:
    with connect(address) as mesh:
        return {
            f"feature-{i}": mesh.open_table(f"feature-{i}").lookup(np.arange(rows)).tobytes()
            for i, rows in enumerate(ClickSpec().rows)
        }


def train(
    folder: Path,
    faults: Sequence[str] = (),
    *,
    parameter_servers: int = 2,
    trainers: int = 2,
    settings: Mapping[str, Any] | None = None,
    seconds: float = 100.0,
    meanwhile: Callable[[LocalCluster], object] = lambda cluster: None,
    all_fire: bool = True,
) -> Outcome:
    """Train to the end in processes that die where the faults say.

    `meanwhile` may act on the cluster. All faults must fire, unless one may prevent the run from
    reaching another.
    """
    marks = folder / "faults"
    marks.mkdir(parents=True)
    own = {**JOB, "process.faults": tuple(faults), "process.fault_marks": marks, **(settings or {})}
    with LocalCluster(
        parameter_servers=parameter_servers,
        trainers=trainers,
        settings=own,
        state=folder / "state",
    ) as cluster:
        meanwhile(cluster)
        wait_for("the end of training", lambda: cluster.work_done, seconds)
        wait_for("the result", lambda: status_of(cluster).result)
        result = dict(status_of(cluster).result)
        tables = read_tables(cluster.address)
        restarts = {p["name"]: p["restarts"] for p in cluster.processes()}
        began = began_at(cluster.folder.log_file("parameter-server-0"))
    fired = {mark.name for mark in marks.iterdir()}
    assert fired == {PlannedFault.parse(fault).mark for fault in faults} or (fired and not all_fire)
    exact = ("auc", "best_auc", "log_loss", "samples", "dense_crc32")
    return Outcome({name: result[name] for name in exact}, tables, restarts, began)


def began_at(log: Path) -> tuple[int, ...]:
    """Return the steps at which a server's runs began, from its log."""
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    return tuple(line["step"] for line in lines if line.get("message") == "run started")


def assert_same(found: Outcome, expected: Outcome) -> None:
    """Check that two runs gave the same bits."""
    assert found.figures == expected.figures
    assert found.tables == expected.tables

"""Real clusters of real processes that lose a member in the middle of training."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from gradmesh.launch.local import LocalCluster
from gradmesh.protos.errors import GradmeshError
from gradmesh.sdk.process.security import SecurityConfig
from gradmesh.sdk.status import ClusterStatus, fetch

ROOT = Path(__file__).resolve().parents[2]
JOB = {"job.steps": 60, "job.batch_size": 64, "job.eval_batches": 5, "job.log_every": 1}
UP = ["--parameter-servers", "2", "--trainers", "2", "--steps", "100000", "--batch-size", "64"]
EXACT = ("auc", "best_auc", "log_loss", "samples")


def wait_for(what: str, look: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < deadline, f"{what} did not happen in {seconds} s"
        time.sleep(0.05)


def status_of(cluster: LocalCluster) -> ClusterStatus:
    try:
        return fetch(cluster.address, SecurityConfig(), 5.0)
    except GradmeshError:
        return ClusterStatus()


def train(victim: str | None) -> dict[str, float]:
    """Train to the end, killing `victim` on the way; return the figures."""
    with LocalCluster(parameter_servers=2, trainers=2, settings=JOB) as cluster:
        if victim is not None:
            wait_for("training", lambda: status_of(cluster).step >= 3)
            (pid,) = [p["pid"] for p in cluster.processes() if p["name"] == victim]
            os.kill(pid, signal.SIGKILL)
        wait_for("the end of training", lambda: cluster.work_done, 100.0)
        result = dict(status_of(cluster).result)
        restarts = {p["name"]: p["restarts"] for p in cluster.processes()}
    assert restarts.pop(victim, None) == (1 if victim else None)
    return {name: result[name] for name in EXACT}


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, float]:
    return train(None)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("victim", ["trainer-1", "parameter-server-0", "coordinator"])
def test_kill_of_any_process_leaves_the_result_bit_identical(
    victim: str, undisturbed: dict[str, float], caplog: pytest.LogCaptureFixture
) -> None:
    figures = train(victim)

    assert figures == undisturbed
    assert f"{victim} was killed by SIGKILL, restarting" in caplog.text


@pytest.fixture
def cluster_command(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    started = subprocess.Popen(
        [sys.executable, "-m", "gradmesh", "up", *UP, "--state", str(tmp_path / "state")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    yield started
    if started.poll() is None:
        started.kill()
    started.communicate(timeout=10)


@pytest.mark.timeout(120)
def test_ctrl_c_in_training_leaves_no_process_and_no_socket(
    cluster_command: subprocess.Popen[str], tmp_path: Path
) -> None:
    state = tmp_path / "state"
    wait_for("the address", (state / "coordinator.address").exists)
    address = (state / "coordinator.address").read_text().strip()
    wait_for("training", lambda: fetch(address, SecurityConfig(), 5.0).step > 3)
    children = psutil.Process(cluster_command.pid).children(recursive=True)
    ports = {c.laddr.port for child in children for c in child.net_connections() if c.laddr}

    cluster_command.send_signal(signal.SIGINT)
    code = cluster_command.wait(timeout=60)

    assert code == 130
    assert len(children) == 5
    assert [child for child in children if child.is_running()] == []
    left = {c.laddr.port for c in psutil.net_connections("inet") if c.status == "LISTEN"}
    assert ports & left == set()

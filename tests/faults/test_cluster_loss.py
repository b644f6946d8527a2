"""Real clusters of real processes that lose a member in the middle of training."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from gradmesh.sdk.cluster.status import fetch
from gradmesh.sdk.process.network import SecurityConfig
from tests.faults.scenario import assert_same, train, wait_for

ROOT = Path(__file__).resolve().parents[2]
UP = ["--parameter-servers", "2", "--trainers", "2", "--steps", "100000", "--batch-size", "64"]


@pytest.mark.timeout(600)
def test_training_continues_while_a_killed_coordinator_restarts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    undisturbed = train(tmp_path / "undisturbed")

    found = train(tmp_path / "run", ["coordinator:reported:7"])

    assert_same(found, undisturbed)
    assert "coordinator was killed by SIGKILL, restarting" in caplog.text
    assert found.restarts == {**undisturbed.restarts, "coordinator": 1}
    # The generation survived: its members are in the coordinator's file.
    assert found.began_at == (0,)


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
    started.communicate(timeout=120)


@pytest.mark.timeout(600)
def test_ctrl_c_in_training_leaves_no_process_and_no_socket(
    cluster_command: subprocess.Popen[str], tmp_path: Path
) -> None:
    state = tmp_path / "state"
    wait_for("the address", (state / "coordinator.address").exists)
    address = (state / "coordinator.address").read_text().strip()
    security = SecurityConfig(token_file=state / "token")
    wait_for("training", lambda: fetch(address, security, 5.0).step > 3)
    children = psutil.Process(cluster_command.pid).children(recursive=True)
    ports = {c.laddr.port for child in children for c in child.net_connections() if c.laddr}

    cluster_command.send_signal(signal.SIGINT)
    code = cluster_command.wait(timeout=120)

    assert code == 130
    assert len(children) == 5
    assert [child for child in children if child.is_running()] == []
    left = {c.laddr.port for c in psutil.net_connections("inet") if c.status == "LISTEN"}
    assert ports & left == set()

"""A whole local cluster of real processes, without trainers."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gradmesh as gm
from gradmesh.launch.errors import ClusterFailed, StateInUse
from gradmesh.protos.errors import MeshError
from gradmesh.sdk.cluster.status import ClusterStatus, fetch
from gradmesh.sdk.process.network import SecurityConfig


def until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 40
    while not (value := condition()):
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.05)
    return value


def members(address: str, count: int) -> ClusterStatus | None:
    try:
        status = fetch(address, SecurityConfig(), 1.0)
    except MeshError:
        return None
    return status if len(status.members) == count else None


def is_dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def gradmesh(*arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gradmesh", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        **more,
    )


def test_cluster_serves_inside_the_block_and_ends_with_it() -> None:
    with gm.LocalCluster(parameter_servers=2) as cluster:
        folder = cluster.folder.path
        status = until(lambda: members(cluster.address, 2))
        pids = [process["pid"] for process in cluster.processes()]

    assert [m.name for m in status.members] == ["parameter-server-0", "parameter-server-1"]
    assert all(is_dead(pid) for pid in pids)
    assert not folder.exists()


@pytest.mark.parametrize("victim", ["coordinator", "parameter-server-0"])
def test_killed_process_restarts_and_resumes(victim: str) -> None:
    with gm.LocalCluster(parameter_servers=1) as cluster:
        address = cluster.address
        before = until(lambda: members(address, 1))
        pids = {p["name"]: p["pid"] for p in cluster.processes()}

        os.kill(pids[victim], signal.SIGKILL)

        def reborn() -> bool:
            process = next(p for p in cluster.processes() if p["name"] == victim)
            return process["pid"] not in (None, pids[victim])

        until(reborn)
        after = until(lambda: members(address, 1))
        assert cluster.address == address
        if victim == "parameter-server-0":
            until(
                lambda: (
                    (now := members(address, 1))
                    and now.members[0].incarnation > before.members[0].incarnation
                )
            )
        assert after.members[0].name == "parameter-server-0"


def test_two_clusters_cannot_share_a_state_folder(tmp_path: Path) -> None:
    second = gm.LocalCluster(parameter_servers=1, state=tmp_path)

    with gm.LocalCluster(parameter_servers=1, state=tmp_path), pytest.raises(StateInUse):
        second.start()


def test_refused_configuration_is_reported_with_the_log(tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text("[coordinator]\nlease_s = -1\n")

    with pytest.raises(ClusterFailed, match="coordinator refused its configuration") as caught:
        gm.LocalCluster(parameter_servers=1, config=file).start()

    assert caught.value.exit_code == 2
    assert any("coordinator.lease_s: expected at least" in line for line in caught.value.log_tail)


def test_up_in_the_background_status_and_down(tmp_path: Path) -> None:
    state = ("--state", str(tmp_path))
    up = gradmesh("up", *state, "--parameter-servers", "1", "--trainers", "0", "--detach")
    try:
        again = gradmesh("up", *state, "--trainers", "0")
        status = gradmesh("status", *state, "--json")
    finally:
        down = gradmesh("down", *state)
    gone = gradmesh("status", *state)

    assert (up.returncode, up.stderr) == (0, "")
    assert again.returncode == 2
    assert "is in use by another cluster" in again.stderr
    assert status.returncode == 0
    processes = json.loads(status.stdout)["processes"]
    assert [p["name"] for p in processes] == ["coordinator", "parameter-server-0"]
    assert (down.returncode, down.stdout) == (0, "the cluster has ended\n")
    assert all(is_dead(p["pid"]) for p in processes)
    assert gone.returncode == 3
    assert sorted(os.listdir(tmp_path)) == ["lock", "logs"]


def test_up_in_the_foreground_ends_with_ctrl_c(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "gradmesh", "up", "--state", str(tmp_path), "--trainers", "0"]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as up:
        try:
            record = until(lambda: _ready(tmp_path))
            up.send_signal(signal.SIGINT)
            _, log = up.communicate(timeout=120)
        finally:
            up.kill()

    assert up.returncode == 130
    assert all(is_dead(child["pid"]) for child in record["children"])
    assert all(json.loads(line)["message"] for line in log.splitlines())


def test_up_checks_the_configuration_before_it_starts_anything(tmp_path: Path) -> None:
    done = gradmesh("up", "--state", str(tmp_path / "s"), "--steps", "0", "--trainers", "-1")

    assert done.returncode == 2
    assert [line.split(":")[1] for line in done.stderr.splitlines()] == [
        " coordinator.trainers",
        " job.steps",
    ]
    assert not (tmp_path / "s").exists()


def _ready(folder: Path) -> dict[str, Any] | None:
    try:
        record: dict[str, Any] = json.loads((folder / "cluster.json").read_text())
    except (OSError, ValueError):
        return None
    return record if record["ready"] else None

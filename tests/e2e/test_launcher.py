"""`gradmesh up --on docker`: the same suite as for the launcher of this machine, and more."""

import gc
import os
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from gradmesh.launch.docker.engine import DockerUnreachable, ImageMissing
from gradmesh.launch.docker.launcher import DockerLauncher
from gradmesh.launch.errors import CannotScale, ClusterFailed
from gradmesh.launch.launcher import ClusterRequest, Launcher
from gradmesh.sdk.cluster.status import fetch
from gradmesh.sdk.process.network import SecurityConfig
from tests.conformance.launcher_suite import DOWN_S, LauncherSuite, joined, until
from tests.e2e.compose import docker

IMAGE = os.environ.get("GRADMESH_IMAGE")


def left(name: str) -> list[str]:
    label = ("--filter", f"label=io.gradmesh.cluster={name}")
    kinds = (("ps", "-aq"), ("volume", "ls", "-q"), ("network", "ls", "-q"))
    return [found for kind in kinds if (found := docker(*kind, *label))]


def name_of(folder: Path) -> str:
    return f"gradmesh-e2e-{zlib.crc32(str(folder).encode()):08x}"


class TestDocker(LauncherSuite):
    def make(self, folder: Path) -> Launcher:
        return DockerLauncher(name_of(folder), IMAGE)

    def test_nothing_is_left_and_a_killed_server_keeps_its_name(self, tmp_path: Path) -> None:
        launcher = self.make(tmp_path)
        address = launcher.up(self.request)
        try:
            both = ["parameter-server-0", "parameter-server-1"]
            until(lambda: joined(address) == both)
            server = launcher.status().processes[1].place.removeprefix("container ")
            docker("exec", server, "sh", "-c", "kill -9 -1", check=False)
            until(lambda: launcher.status().processes[1].restarts == 1)
            until(lambda: joined(address) == both)
        finally:
            launcher.down(DOWN_S)

        assert left(name_of(tmp_path)) == []


def test_trainers_and_servers_join_and_leave(tmp_path: Path) -> None:
    launcher = DockerLauncher(name_of(tmp_path), IMAGE)
    endless = {"job.steps": 1_000_000, "job.batch_size": 32}
    address = launcher.up(ClusterRequest(parameter_servers=1, trainers=1, settings=endless))
    try:
        until(lambda: steps(address, 1))
        moved = gradmesh(tmp_path, "scale", "parameter-servers", "2")
        launcher.scale("trainer", 2)
        until(lambda: steps(address, 2))
        launcher.scale("trainer", 1)
        until(lambda: steps(address, 1))
        names = [process.name for process in launcher.status().processes]
        with pytest.raises(CannotScale, match="without any"):
            launcher.scale("worker", 2)
    finally:
        in_order = launcher.down(DOWN_S)

    assert moved.returncode == 0, moved.stderr
    assert "2 parameter servers" in moved.stdout
    assert names == ["coordinator", "parameter-server-0", "parameter-server-1", "trainer-0"]
    assert in_order
    assert left(name_of(tmp_path)) == []


def steps(address: str, trainers: int) -> bool:
    """Return whether the requested number of trainers train together."""
    try:
        members = fetch(address, SecurityConfig(), 1.0).members
    except Exception:
        return False
    training = [m for m in members if m.role == "trainer"]
    return len(training) == trainers and all(m.step for m in training)


def test_a_job_from_a_file_runs_to_its_end(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text("[job]\nsteps = 40\nbatch_size = 64\neval_batches = 2\n")
    # The container's user is another one.
    tmp_path.chmod(0o755)
    size = ("--parameter-servers", "1", "--trainers", "1", "--config", str(job))
    done = gradmesh(tmp_path, "up", *size, "--exit-when-done")

    assert done.returncode == 0, done.stderr
    assert '"steps": 40' in done.stderr or '"step": 40' in done.stderr
    assert '"message": "done"' in done.stderr
    assert left(name_of(tmp_path)) == []


def test_wrong_settings_end_it_with_the_log_and_leave_nothing(tmp_path: Path) -> None:
    launcher = DockerLauncher(name_of(tmp_path), IMAGE)
    wrong = ClusterRequest(parameter_servers=1, trainers=0, settings={"coordinator.lease_s": -1})

    with pytest.raises(ClusterFailed, match="refused its configuration") as caught:
        launcher.up(wrong)

    assert caught.value.exit_code == 2
    assert any("coordinator.lease_s" in line for line in caught.value.log_tail)
    assert left(name_of(tmp_path)) == []


# The client leaks the socket that it could not connect; the garbage collector closes it.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_missing_image_and_a_missing_engine_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = DockerLauncher(name_of(tmp_path), "gradmesh:none")
    with pytest.raises(ImageMissing, match="make image"):
        launcher.up(LauncherSuite.request)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(DockerUnreachable, match="DOCKER_HOST") as caught:
        DockerLauncher("x")
    assert caught.value.exit_code == 3
    del caught
    gc.collect()


def gradmesh(folder: Path, command: str, *more: str) -> "subprocess.CompletedProcess[Any]":
    where = ("--on", "docker", "--name", name_of(folder))
    return subprocess.run(
        [sys.executable, "-m", "gradmesh", command, *more, *where],
        capture_output=True,
        text=True,
        timeout=200,
    )

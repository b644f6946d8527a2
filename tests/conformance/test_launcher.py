"""The local launcher; the Docker launcher runs the same suite in tests/e2e."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gradmesh.launch.errors import CannotScale, NoCluster
from gradmesh.launch.launcher import ClusterView, Launcher, ProcessState, ProcessView
from gradmesh.launch.local_launcher import LocalLauncher
from tests.conformance.launcher_suite import LauncherSuite


class TestLocal(LauncherSuite):
    def make(self, folder: Path) -> Launcher:
        return LocalLauncher(folder)

    def test_logs_are_kept_after_the_end(self, cluster: Launcher) -> None:
        cluster.down(60)

        assert any("draining" in line for _, line in cluster.logs(["coordinator"]))

    def test_the_command_shows_lines_as_they_are(self, tmp_path: Path, cluster: Launcher) -> None:
        shown = subprocess.run(
            [sys.executable, "-m", "gradmesh", "logs", "coordinator", "--state", str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=120,
        )

        assert (shown.returncode, shown.stderr) == (0, "")
        assert {json.loads(line)["role"] for line in shown.stdout.splitlines()} == {"coordinator"}

    def test_scaling_a_fixed_number_of_servers_is_refused_with_the_reason(
        self, cluster: Launcher
    ) -> None:
        with pytest.raises(CannotScale, match="trainer processes: a local cluster keeps"):
            cluster.scale("trainer", 3)


def test_a_folder_without_logs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoCluster):
        LocalLauncher(tmp_path / "none").logs()


@pytest.mark.parametrize(
    ("states", "done"),
    [((), False), (("done", "running"), False), (("done", "failed"), False), (("done",), True)],
)
def test_work_is_done_when_every_trainer_is(states: tuple[ProcessState, ...], done: bool) -> None:
    trainers = [
        ProcessView(name=f"trainer-{rank}", role="trainer", state=state)
        for rank, state in enumerate(states)
    ]
    server = ProcessView(name="coordinator", role="coordinator", state="running")

    assert ClusterView(address="a:1", processes=[server, *trainers]).work_done is done

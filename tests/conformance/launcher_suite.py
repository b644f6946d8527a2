"""The conformance suite of launchers; a test class for each launcher defines `make`."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gradmesh.launch.errors import ClusterExists, NoCluster, StateInUse
from gradmesh.launch.launcher import ClusterRequest, Launcher
from gradmesh.protos.errors import MeshError
from gradmesh.sdk.cluster.status import fetch
from gradmesh.sdk.process.network import SecurityConfig

DOWN_S = 60.0


def until(condition: Callable[[], Any], within_s: float = 60) -> Any:
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.05)
    return value


def joined(address: str) -> list[str]:
    try:
        return sorted(m.name for m in fetch(address, SecurityConfig(), 1.0).members)
    except MeshError:
        return []


class LauncherSuite:
    request = ClusterRequest(parameter_servers=2, trainers=0)

    def make(self, folder: Path) -> Launcher:
        """Return a launcher; two made with one folder MUST find the same cluster."""
        raise NotImplementedError

    @pytest.fixture
    def cluster(self, tmp_path: Path) -> Iterator[Launcher]:
        launcher = self.make(tmp_path)
        launcher.up(self.request)
        yield launcher
        with contextlib.suppress(NoCluster):
            launcher.down(DOWN_S)

    def test_a_cluster_runs_from_up_to_down(self, tmp_path: Path) -> None:
        launcher = self.make(tmp_path)
        address = launcher.up(self.request)
        try:
            names = ["parameter-server-0", "parameter-server-1"]
            until(lambda: joined(address) == names)
            view = self.make(tmp_path).status()
            with pytest.raises((ClusterExists, StateInUse), match="gradmesh down"):
                self.make(tmp_path).up(self.request)
        finally:
            in_order = self.make(tmp_path).down(DOWN_S)

        assert in_order
        assert view.address == address
        assert [(p.name, p.role, p.state, p.restarts) for p in view.processes] == [
            ("coordinator", "coordinator", "running", 0),
            ("parameter-server-0", "parameter-server", "running", 0),
            ("parameter-server-1", "parameter-server", "running", 0),
        ]
        assert not view.work_done
        assert joined(address) == []
        with pytest.raises(NoCluster, match="gradmesh up"):
            launcher.status()
        with pytest.raises(NoCluster, match="gradmesh up"):
            launcher.down(DOWN_S)

    def test_logs_are_those_of_the_processes_asked_for(self, cluster: Launcher) -> None:
        until(lambda: len(joined(cluster.status().address)) == 2)
        every, one = list(cluster.logs()), list(cluster.logs(["parameter-server-1"]))
        last = list(cluster.logs(["parameter-server-1"], tail=1))

        assert {"coordinator", "parameter-server-0"} <= {name for name, _ in every}
        assert {name for name, _ in one} == {"parameter-server-1"}
        assert set(one) <= set(every)
        assert len(last) == 1

    def test_followed_logs_continue_until_the_end(self, cluster: Launcher) -> None:
        until(lambda: len(joined(cluster.status().address)) == 2)
        lines = cluster.logs(["coordinator"], follow=True)
        first = next(lines)
        cluster.down(DOWN_S)
        rest = list(lines)

        assert first[0] == "coordinator"
        assert any("draining" in line for _, line in rest)

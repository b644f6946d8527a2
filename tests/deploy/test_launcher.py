"""The launcher of Kubernetes against the emulated cluster, as a user with the documented rights."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradmesh.launch.kubernetes.api import KubernetesOptions
from gradmesh.launch.kubernetes.launcher import KubernetesLauncher
from gradmesh.launch.launcher import Launcher
from tests.conformance.launcher_suite import LauncherSuite
from tests.deploy.emulator.cluster import EmulatedCluster
from tests.deploy.manifests import OVERLAYS, named, render


def roles(*names: str) -> list[dict[str, object]]:
    return [named(render(OVERLAYS[0]), "Role", f"gradmesh-{name}") for name in names]


@pytest.fixture
def emulated(tmp_path: Path) -> Iterator[EmulatedCluster]:
    cluster = EmulatedCluster(tmp_path / "node", namespace="team")
    cluster.api.roles["operator"] = roles("viewer", "operator")
    cluster.api.roles["viewer"] = roles("viewer")
    cluster.api.kubeconfig(tmp_path, "operator")
    with contextlib.closing(cluster):
        yield cluster


def launcher(folder: Path, user: str = "operator", name: str = "one") -> KubernetesLauncher:
    options = KubernetesOptions(namespace="team", kubeconfig=folder / f"kubeconfig-{user}")
    return KubernetesLauncher(name, options, ready_s=40)


@pytest.mark.slow
@pytest.mark.usefixtures("emulated")
class TestKubernetes(LauncherSuite):
    def make(self, folder: Path) -> Launcher:
        return launcher(folder)

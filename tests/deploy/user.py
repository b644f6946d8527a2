"""Commands of a user of an emulated cluster, and the objects left afterwards."""

import subprocess
import sys
from pathlib import Path

from gradmesh.launch.kubernetes.api import KubernetesOptions
from gradmesh.launch.kubernetes.launcher import KubernetesLauncher
from tests.deploy.emulator.cluster import EmulatedCluster


def launcher(folder: Path, user: str = "operator", name: str = "one") -> KubernetesLauncher:
    options = KubernetesOptions(namespace="team", kubeconfig=folder / f"kubeconfig-{user}")
    return KubernetesLauncher(name, options, ready_s=40)


def command(folder: Path, *arguments: str, user: str = "operator") -> list[str]:
    """Return a command as a user types it."""
    where = ("--on", "kubernetes", "--kubeconfig", str(folder / f"kubeconfig-{user}"))
    return [sys.executable, "-m", "gradmesh", *arguments, *where]


def run(folder: Path, *arguments: str, user: str = "operator") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(folder, *arguments, user=user),
        capture_output=True,
        text=True,
        timeout=150,
        cwd=folder,
    )


def left_over(emulated: EmulatedCluster) -> list[tuple[str, str]]:
    return [
        (made["kind"], made["metadata"]["name"])
        for resource in emulated.api.resources
        for made in emulated.objects.list(resource.plural)
        if made["kind"] != "Namespace"
    ]

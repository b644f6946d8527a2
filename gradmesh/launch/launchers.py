"""The launchers by the name that `--on` takes; each is imported when it is used."""

from pathlib import Path
from typing import Literal, TypeAlias

from gradmesh.launch.kubernetes.api import KubernetesOptions
from gradmesh.launch.launcher import Launcher

Place: TypeAlias = Literal["local", "docker", "kubernetes"]


def launcher(on: Place, *, state: Path, name: str, kubernetes: KubernetesOptions) -> Launcher:
    """Return the launcher of a place.

    Args:
        on: Where the cluster runs.
        state: State folder of a local cluster.
        name: Name of a cluster elsewhere.
        kubernetes: Which Kubernetes, and where in it; its image is that of containers, too.

    Raises:
        DockerMissing, KubernetesMissing: Its client is not installed.
        DockerUnreachable, KubernetesUnreachable: It does not answer, or none is configured.
    """
    if on == "docker":
        from gradmesh.launch.docker.launcher import DockerLauncher

        return DockerLauncher(name, kubernetes.image)
    if on == "kubernetes":
        from gradmesh.launch.kubernetes.launcher import KubernetesLauncher

        return KubernetesLauncher(name, kubernetes)
    from gradmesh.launch.local_launcher import LocalLauncher

    return LocalLauncher(state)

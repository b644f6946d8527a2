"""The engine as a launcher needs it: what carries the label of one cluster."""

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any, TypeAlias, final

from gradmesh.launch.docker.errors import DockerMissing, DockerRejected, DockerUnreachable
from gradmesh.protos.limits import natural_key

# The client has no types.
Container: TypeAlias = Any
Client: TypeAlias = Any

CLUSTER = "io.gradmesh.cluster"
ROLE = "io.gradmesh.role"
PROCESS = "io.gradmesh.process"
ORDER = ("coordinator", "parameter-server", "trainer", "worker")
"""Roles in the order of their start."""


@final
class Engine:
    """Containers, volumes and the network of one cluster.

    Args:
        name: Of the cluster.

    Raises:
        DockerMissing: The client is not installed.
        DockerUnreachable: No engine answers.
    """

    def __init__(self, name: str) -> None:
        try:
            import docker
        except ImportError:
            raise DockerMissing from None
        self.name = name
        try:
            self.client: Client = docker.from_env()
            # A launcher has no end of its own; its connections go with it.
            weakref.finalize(self, self.client.close)
            self.client.ping()
        except docker.errors.DockerException as error:
            raise DockerUnreachable(str(error)) from error

    def containers(self) -> list[Container]:
        """Return all of them, also those that have ended, by role and name."""
        with refusals("list containers"):
            # One that goes while it is looked at is no news.
            found = self.client.containers.list(
                all=True, filters={"label": f"{CLUSTER}={self.name}"}, ignore_removed=True
            )
        return sorted(
            found, key=lambda c: (ORDER.index(c.labels[ROLE]), natural_key(c.labels[PROCESS]))
        )

    def labels(self, role: str, process: str) -> dict[str, str]:
        """Return what a container is found by."""
        return {CLUSTER: self.name, ROLE: role, PROCESS: process}

    def make_network(self) -> None:
        """Make the network on which processes reach each other by their names."""
        with refusals("make a network"):
            self.client.networks.create(
                self.name, driver="bridge", labels={CLUSTER: self.name}, check_duplicate=True
            )

    def make_volume(self, process: str) -> str:
        """Make the volume of a process, which outlives its container; return its name."""
        name = self.volume_name(process)
        with refusals("make a volume"):
            self.client.volumes.create(name, labels={CLUSTER: self.name})
        return name

    def volume_name(self, process: str) -> str:
        """Return the name of a process's volume."""
        return f"{self.name}-{process}"

    def remove_volume(self, process: str) -> None:
        """Remove the volume of a process that is gone, if it had one."""
        with refusals("remove a volume"):
            for volume in self.client.volumes.list(filters={"name": self.volume_name(process)}):
                if volume.name == self.volume_name(process):
                    volume.remove(force=True)

    def remove_rest(self) -> None:
        """Remove what containers have left: volumes and the network."""
        label = {"label": f"{CLUSTER}={self.name}"}
        with refusals("remove volumes and network"):
            for volume in self.client.volumes.list(filters=label):
                volume.remove(force=True)
            for network in self.client.networks.list(filters=label):
                network.remove()


@contextlib.contextmanager
def refusals(action: str) -> Iterator[None]:
    """Turn what the engine says into an error of ours.

    Raises:
        DockerRejected: The engine refused.
    """
    import docker

    try:
        yield
    except docker.errors.APIError as error:
        raise DockerRejected(action, error.explanation or str(error)) from error

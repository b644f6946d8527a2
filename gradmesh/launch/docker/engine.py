"""One container engine: the containers, volumes and network of a cluster, and their logs."""

import contextlib
import time
import weakref
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, TypeAlias, final

from gradmesh.base_error import GradmeshError
from gradmesh.launch.logs import LogSource, complete_lines, follow_sources
from gradmesh.protos.limits import natural_key


@final
class DockerMissing(ImportError, GradmeshError):
    """The client of the engine is not installed."""

    exit_code: ClassVar[int] = 2

    def __init__(self) -> None:
        super().__init__(
            "--on docker needs the engine's client; install it with "
            "`pip install 'gradmesh[docker]'`"
        )


@final
class DockerUnreachable(ConnectionError, GradmeshError):
    """No engine answers.

    Args:
        why: The client's message.
    """

    exit_code: ClassVar[int] = 3

    def __init__(self, why: str) -> None:
        super().__init__(
            f"no container engine answers: {why}; look at `docker info`, start the engine, or set "
            "DOCKER_HOST"
        )


@final
class DockerRejected(RuntimeError, GradmeshError):
    """The engine refused a request.

    Args:
        action: The requested action.
        why: The engine's message.
    """

    exit_code: ClassVar[int] = 4

    def __init__(self, action: str, why: str) -> None:
        super().__init__(f"the engine refused to {action}: {why}")


@final
class ImageMissing(LookupError, GradmeshError):
    """The engine lacks the image.

    Args:
        image: Its name.
    """

    exit_code: ClassVar[int] = 2

    def __init__(self, image: str) -> None:
        super().__init__(
            f"the engine has no image {image!r}; build it with `make image`, or name another one "
            "with --image"
        )


# The client has no types.
Container: TypeAlias = Any
Client: TypeAlias = Any

CLUSTER = "io.gradmesh.cluster"
ROLE = "io.gradmesh.role"
PROCESS = "io.gradmesh.process"
_POLL_S = 0.2
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
            # A launcher is never closed; its connections end with the process.
            weakref.finalize(self, self.client.close)
            self.client.ping()
        except docker.errors.DockerException as error:
            raise DockerUnreachable(str(error)) from error

    def containers(self) -> list[Container]:
        """Return all containers, ended ones included, by role and name."""
        with refusals("list containers"):
            # A container removed meanwhile is not an error.
            found = self.client.containers.list(
                all=True, filters={"label": f"{CLUSTER}={self.name}"}, ignore_removed=True
            )
        return sorted(
            found, key=lambda c: (ORDER.index(c.labels[ROLE]), natural_key(c.labels[PROCESS]))
        )

    def labels(self, role: str, process: str) -> dict[str, str]:
        """Return the labels that identify a container."""
        return {CLUSTER: self.name, ROLE: role, PROCESS: process}

    def make_network(self) -> None:
        """Create the network on which processes reach each other by name."""
        with refusals("make a network"):
            self.client.networks.create(
                self.name, driver="bridge", labels={CLUSTER: self.name}, check_duplicate=True
            )

    def make_volume(self, process: str) -> str:
        """Create the volume of a process, which outlives its container; return its name."""
        name = self.volume_name(process)
        with refusals("make a volume"):
            self.client.volumes.create(name, labels={CLUSTER: self.name})
        return name

    def volume_name(self, process: str) -> str:
        """Return the name of a process's volume."""
        return f"{self.name}-{process}"

    def remove_volume(self, process: str) -> None:
        """Remove the volume of a removed process, if it had one."""
        with refusals("remove a volume"):
            for volume in self.client.volumes.list(filters={"name": self.volume_name(process)}):
                if volume.name == self.volume_name(process):
                    volume.remove(force=True)

    def remove_rest(self) -> None:
        """Remove the volumes and the network."""
        label = {"label": f"{CLUSTER}={self.name}"}
        with refusals("remove volumes and network"):
            for volume in self.client.volumes.list(filters=label):
                volume.remove(force=True)
            for network in self.client.networks.list(filters=label):
                network.remove()


@contextlib.contextmanager
def refusals(action: str) -> Iterator[None]:
    """Turn errors of the engine into ours.

    Raises:
        DockerRejected: The engine refused.
    """
    import docker

    try:
        yield
    except docker.errors.APIError as error:
        raise DockerRejected(action, error.explanation or str(error)) from error


@final
class ContainerLogs:
    """Reads the logs of a cluster's containers.

    Args:
        engine: The engine of the cluster.
        names: Processes to read; all by default, including those started later.
    """

    def __init__(self, engine: Engine, names: Sequence[str] = ()) -> None:
        self._engine = engine
        self._names = names

    def written(self, tail: int | None) -> list[tuple[str, str]]:
        """Return process and line of all log lines so far, sorted by the time of writing."""
        found = []
        for container in self._containers():
            name = container.labels[PROCESS]
            raw = container.logs(timestamps=True, tail="all" if tail is None else tail)
            for line in raw.decode(errors="replace").splitlines():
                stamp, _, text = line.partition(" ")
                found.append((stamp, name, text))
        return [(name, text) for _, name, text in sorted(found, key=lambda entry: entry[0])]

    def follow(self, tail: int | None) -> Iterator[tuple[str, str]]:
        """Yield process and line as they arrive, until the cluster's containers are removed."""

        def find() -> tuple[list[LogSource], bool]:
            containers = self._containers()
            sources = [
                LogSource(one.id, one.labels[PROCESS], partial(_follow, one)) for one in containers
            ]
            return sources, bool(containers)

        return follow_sources(find, tail, _POLL_S)

    def _containers(self) -> list[Container]:
        found = self._engine.containers()
        return [c for c in found if not self._names or c.labels[PROCESS] in self._names]


def _follow(container: Container, tail: int | None) -> Iterator[str]:
    import docker

    last, begin = "", "all" if tail is None else tail
    try:
        while True:
            # The stream ends with the process; a restarted container continues the log.
            stream = container.logs(stream=True, follow=True, timestamps=True, tail=begin)
            for raw in complete_lines(stream):
                stamp, _, text = raw.partition(" ")
                if stamp > last:
                    last = stamp
                    yield text
            begin = "all"
            time.sleep(_POLL_S)
            container.reload()
    except (docker.errors.APIError, OSError):
        # The container was removed, and its log with it.
        return

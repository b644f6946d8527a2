"""The interface behind `gradmesh up --on …`: a launcher hides where a cluster runs.

A launcher finds its cluster again by what it was made with (a state folder, a name), so that every
command may be another process.
"""

import abc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias, final

from gradmesh.launch.kubernetes.api import KubernetesOptions

LauncherName: TypeAlias = Literal["local", "docker", "kubernetes"]
Role: TypeAlias = Literal["coordinator", "parameter-server", "trainer", "worker"]
ProcessState: TypeAlias = Literal["waiting", "running", "done", "failed"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRequest:
    """What a user asks for.

    Attributes:
        parameter_servers: How many, at least one.
        trainers: How many run the configured job; 0 leaves training to others.
        workers: How many serve functions.
        settings: By `section.key`, such as `{"job.steps": 100}`; stronger than the file.
        config: TOML file that all processes read.
        listen: Where the coordinator serves, as far as that is for the user to say.
        until_done: Whether the cluster ends by itself when all trainers are done.
    """

    parameter_servers: int
    trainers: int
    workers: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    config: Path | None = None
    listen: str = "127.0.0.1:0"
    until_done: bool = False


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessView:
    """One process of a cluster as its launcher sees it.

    Attributes:
        name: Unique in the cluster, and kept over restarts.
        role: What it is.
        state: Not started yet or about to be restarted, running, done, or failed for good.
        restarts: How often it was started again.
        pid: Its process id on this machine, if that means anything.
        place: Container or pod it runs in; empty for a process of this machine.
    """

    name: str
    role: str
    state: ProcessState
    restarts: int = 0
    pid: int | None = None
    place: str = ""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """A running cluster as its launcher sees it.

    Attributes:
        address: Where this machine reaches the coordinator.
        processes: In the order of their start.
        failure: Why the cluster cannot go on, if its launcher knows; else empty.
    """

    address: str
    processes: Sequence[ProcessView]
    failure: str = ""

    @property
    def work_done(self) -> bool:
        """Whether there are trainers and all of them are done."""
        states = [process.state for process in self.processes if process.role == "trainer"]
        return bool(states) and all(state == "done" for state in states)


class Launcher(abc.ABC):
    """Runs one cluster somewhere; `tests/conformance/test_launcher.py` holds all to the same."""

    address_lasts: ClassVar[bool] = True
    """Whether its addresses can be reached from other processes."""

    @abc.abstractmethod
    def up(self, request: ClusterRequest) -> str:
        """Start a cluster that outlives this process, and wait until its coordinator serves.

        MUST start nothing if a cluster runs there already, and MUST leave nothing behind when it
        fails.

        Returns:
            Where this machine reaches the coordinator.

        Raises:
            ClusterExists: One runs already (StateInUse for a state folder).
            ClusterFailed: It did not come up.
        """

    @abc.abstractmethod
    def run(
        self, request: ClusterRequest, on_line: Callable[[str, str], None], drain_s: float
    ) -> int:
        """Start a cluster, stay with it, and end it: on SIGINT or SIGTERM, or when it is done.

        Args:
            request: What to start.
            on_line: Called with process and line of its log, from many threads.
            drain_s: Seconds its orderly end may take.

        Returns:
            The exit code; 130 or 143 after a signal.

        Raises:
            ClusterExists: One runs already (StateInUse for a state folder).
            ClusterFailed: The cluster ended by itself, and not because its work was done.
        """

    @abc.abstractmethod
    def status(self) -> ClusterView:
        """Return what runs, and where.

        Raises:
            NoCluster: There is none.
        """

    @abc.abstractmethod
    def logs(
        self, names: Sequence[str] = (), *, follow: bool = False, tail: int | None = None
    ) -> Iterator[tuple[str, str]]:
        """Yield process and line for each line of the logs.

        Args:
            names: Processes to read; all by default.
            follow: Whether to go on with what is written, until the cluster has ended.
            tail: Begin with this many lines of each process; all by default.

        Raises:
            NoCluster: There is none, and no logs of a former one.
        """

    @abc.abstractmethod
    def scale(self, role: Role, count: int) -> None:
        """Change the number of processes of a role; MUST keep the names of those that stay.

        Raises:
            NoCluster: There is none.
            CannotScale: This role cannot be scaled here; says why.
        """

    @abc.abstractmethod
    def down(self, timeout_s: float) -> bool:
        """End the cluster and wait until nothing of it is left, rows included.

        Args:
            timeout_s: After this it is killed.

        Returns:
            Whether it ended in order.

        Raises:
            NoCluster: There is none.
        """


def open_launcher(
    on: LauncherName, *, state: Path, name: str, kubernetes: KubernetesOptions
) -> Launcher:
    """Return a launcher by the name that `--on` takes; each is imported only when it is used.

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

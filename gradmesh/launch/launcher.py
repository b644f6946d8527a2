"""The interface behind `gradmesh up --on …`: a launcher runs a cluster on one platform.

A launcher finds its cluster again by its arguments (a state folder, a name), because every
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
    """The cluster that a user requests.

    Attributes:
        parameter_servers: Number of parameter servers, at least one.
        trainers: Number of trainers that run the configured job; 0 starts none.
        workers: Number of workers that serve functions.
        settings: By `section.key`, such as `{"job.steps": 100}`; they override the file.
        config: TOML file that all processes read.
        listen: Listen address of the coordinator, if the launcher lets the user choose.
        until_done: Whether the cluster ends when all trainers are done.
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
        name: Unique in the cluster, and stable across restarts.
        role: Role of the process.
        state: Not started yet or about to be restarted, running, done, or failed for good.
        restarts: Number of restarts.
        pid: Its process id, if it runs on this machine.
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
        address: The coordinator's address as seen from this machine.
        processes: In the order of their start.
        failure: Why the cluster cannot continue, if its launcher detects that; else empty.
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
    """Runs one cluster on a platform; `tests/conformance/launcher_suite.py` tests all launchers."""

    address_lasts: ClassVar[bool] = True
    """Whether its addresses can be reached from other processes."""

    @abc.abstractmethod
    def up(self, request: ClusterRequest) -> str:
        """Start a cluster that outlives this process, and wait until its coordinator serves.

        MUST start nothing if a cluster runs there already, and MUST leave nothing behind when it
        fails.

        Returns:
            The coordinator's address as seen from this machine.

        Raises:
            ClusterExists: One runs already (StateInUse for a state folder).
            ClusterFailed: It did not come up.
        """

    @abc.abstractmethod
    def run(
        self, request: ClusterRequest, on_line: Callable[[str, str], None], drain_s: float
    ) -> int:
        """Run a cluster in the foreground; end it on SIGINT or SIGTERM, or when it is done.

        Args:
            request: The cluster to start.
            on_line: Called with process and line of its log, from many threads.
            drain_s: Seconds its orderly end may take.

        Returns:
            The exit code; 130 or 143 after a signal.

        Raises:
            ClusterExists: One runs already (StateInUse for a state folder).
            ClusterFailed: The cluster ended before its work was done.
        """

    @abc.abstractmethod
    def status(self) -> ClusterView:
        """Return the coordinator's address and the state of the processes.

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
            follow: Whether to follow the logs until the cluster has ended.
            tail: Begin with this many lines of each process; all by default.

        Raises:
            NoCluster: There is none, and no logs of a former one.
        """

    @abc.abstractmethod
    def scale(self, role: Role, count: int) -> None:
        """Change the number of processes of a role; remaining ones MUST keep their names.

        Raises:
            NoCluster: There is none.
            CannotScale: This role cannot be scaled here; gives the reason.
        """

    @abc.abstractmethod
    def down(self, timeout_s: float) -> bool:
        """End the cluster and wait until all of it is removed, rows included.

        Args:
            timeout_s: After this it is killed.

        Returns:
            Whether it drained, instead of being killed.

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
        name: Name of a cluster that is not local.
        kubernetes: Kubernetes cluster and namespace; its image is that of containers, too.

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

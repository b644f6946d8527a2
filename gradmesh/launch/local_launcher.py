"""The launcher of this machine: processes under a supervisor, found by a state folder."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import final

from gradmesh.launch.detach import start_detached
from gradmesh.launch.ending import end_cluster
from gradmesh.launch.errors import CannotScale, NoCluster
from gradmesh.launch.foreground import stay
from gradmesh.launch.launcher import ClusterRequest, ClusterView, Launcher, ProcessView, Role
from gradmesh.launch.local import LocalCluster
from gradmesh.launch.log_files import LogFiles
from gradmesh.launch.plan import SERVER_ROLE
from gradmesh.launch.state import StateFolder
from gradmesh.launch.variables import variables


@final
class LocalLauncher(Launcher):
    """Runs a cluster as processes of this machine.

    Args:
        state: The state folder.
    """

    def __init__(self, state: Path) -> None:
        self._folder = StateFolder(state)

    def up(self, request: ClusterRequest) -> str:
        """Start a supervisor in a session of its own."""
        given = {
            **request.settings,
            "coordinator.parameter_servers": request.parameter_servers,
            "coordinator.trainers": request.trainers,
            "coordinator.listen": request.listen,
        }
        arguments = ["--workers", str(request.workers)]
        if request.until_done:
            arguments.append("--exit-when-done")
        return start_detached(self._folder, arguments, request.config, variables(given))

    def run(
        self, request: ClusterRequest, on_line: Callable[[str, str], None], drain_s: float
    ) -> int:
        """Supervise the cluster from this process."""
        cluster = LocalCluster(
            parameter_servers=request.parameter_servers,
            trainers=request.trainers,
            workers=request.workers,
            config=request.config,
            state=self._folder.path,
            listen=request.listen,
            settings=request.settings,
            until_done=request.until_done,
            on_line=on_line,
        )
        cluster.launch()
        try:
            outcome, code = stay(cluster, drain_s)
        finally:
            cluster.stop()
        if outcome.exit_code != 0:
            raise cluster.failure(outcome)
        return code

    def status(self) -> ClusterView:
        """Read what the supervisor has written down."""
        record = self._folder.read()
        if record is None or not self._folder.in_use() or record.get("address") is None:
            raise NoCluster.in_folder(self._folder.path)
        seen = ("name", "role", "state", "restarts", "pid")
        processes = [ProcessView(**{key: p[key] for key in seen}) for p in record["children"]]
        return ClusterView(address=record["address"], processes=processes)

    def logs(
        self, names: Sequence[str] = (), *, follow: bool = False, tail: int | None = None
    ) -> Iterator[tuple[str, str]]:
        """Read the log files, which outlive the cluster."""
        if not self._folder.logs.is_dir():
            raise NoCluster.in_folder(self._folder.path)
        files = LogFiles(self._folder.logs, names)
        if not follow:
            return iter(files.newest(tail))
        return files.follow(lambda: not self._folder.in_use(), tail)

    def scale(self, role: Role, count: int) -> None:
        """Have the supervisor run as many parameter servers; it keeps all others as they are."""
        self.status()
        if role != SERVER_ROLE:
            why = "a local cluster keeps as many as it began with; start it anew with others"
            raise CannotScale(role, why)
        self._folder.want_servers(count)

    def down(self, timeout_s: float) -> bool:
        """Ask the supervisor to end; kill it after the timeout."""
        return end_cluster(self._folder, timeout_s)

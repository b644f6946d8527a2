"""The launcher of this machine: processes under a supervisor, identified by a state folder."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import final

from gradmesh.launch.errors import CannotScale, ClusterFailed, NoCluster, StateInUse
from gradmesh.launch.foreground import wait_for_end
from gradmesh.launch.launcher import ClusterRequest, ClusterView, Launcher, ProcessView, Role
from gradmesh.launch.local import LocalCluster
from gradmesh.launch.logs import LogFiles, readable
from gradmesh.launch.plan import SERVER_ROLE
from gradmesh.launch.sections import variables
from gradmesh.launch.state import StateFolder
from gradmesh.sdk.process.private import open_private

_POLL_S = 0.05


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
            outcome, code = wait_for_end(cluster, drain_s)
        finally:
            cluster.stop()
        if outcome.exit_code != 0:
            raise cluster.failure(outcome)
        return code

    def status(self) -> ClusterView:
        """Read the supervisor's record."""
        record = self._folder.read()
        if record is None or not self._folder.in_use() or record.get("address") is None:
            raise NoCluster.in_folder(self._folder.path)
        seen = ("name", "role", "state", "restarts", "pid")
        children = [child for child in record.get("children", []) if child.keys() >= set(seen)]
        processes = [ProcessView(**{key: p[key] for key in seen}) for p in children]
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
        """Set the number of parameter servers that the supervisor runs."""
        self.status()
        if role != SERVER_ROLE:
            why = "a local cluster keeps the number it began with; start it again with another"
            raise CannotScale(role, why)
        self._folder.want_servers(count)

    def down(self, timeout_s: float) -> bool:
        """Ask the supervisor to end; kill it after the timeout."""
        return end_cluster(self._folder, timeout_s)


def start_detached(
    folder: StateFolder,
    arguments: Sequence[str],
    config: Path | None,
    environment: Mapping[str, str],
    timeout_s: float = 90.0,
) -> str:
    """Run `gradmesh up` in a session of its own and wait until all its processes run.

    Args:
        folder: The state folder; the output goes to its logs/supervisor.log.
        arguments: Flags of `up`.
        config: The configuration file.
        environment: Variables added to those of this process.
        timeout_s: Longest wait.

    Returns:
        The coordinator's address.

    Raises:
        StateInUse: Another cluster runs in the state folder.
        ClusterFailed: The cluster did not come up; carries the tail of the supervisor's log.
    """
    if folder.in_use():
        raise StateInUse(folder.path, folder.supervisor_pid())
    folder.make()
    shared = () if config is None else ("--config", str(config))
    program = (sys.executable, "-m", "gradmesh", "up", "--state", str(folder.path))
    with open_private(folder.log_file("supervisor"), "wb") as log:
        supervisor = subprocess.Popen(
            [*program, *shared, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **environment},
            start_new_session=True,
        )
    deadline = time.monotonic() + timeout_s
    while supervisor.poll() is None:
        record = folder.read() or {}
        if record.get("pid") == supervisor.pid and record.get("ready"):
            # It outlives this process; init reaps it.
            supervisor.returncode = 0
            return str(record["address"])
        if time.monotonic() > deadline:
            supervisor.terminate()
            supervisor.wait(timeout_s)
            break
        time.sleep(_POLL_S)
    raise ClusterFailed(
        f"the cluster did not come up in {str(folder.path)!r}; see logs/supervisor.log there",
        supervisor.returncode or 4,
        tuple(readable(line) for line in folder.tail("supervisor")),
    )


def end_cluster(folder: StateFolder, timeout_s: float) -> bool:
    """Ask the supervisor of a state folder to end its cluster, and wait until it has ended.

    Args:
        folder: The state folder.
        timeout_s: After this the supervisor is killed; its children then end by their lifelines.

    Returns:
        Whether it drained, instead of being killed.

    Raises:
        NoCluster: There is none.
    """
    pid = folder.supervisor_pid()
    if pid is None or not folder.in_use():
        raise NoCluster.in_folder(folder.path)
    # The lock is held, so the process id belongs to a living supervisor.
    _signal(pid, signal.SIGTERM)
    if _wait_until_free(folder, timeout_s):
        return True
    _signal(pid, signal.SIGKILL)
    _wait_until_free(folder, timeout_s)
    # Locking the folder waits for the children of the dead supervisor and cleans up after it.
    folder.lock()
    folder.unlock()
    return False


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _wait_until_free(folder: StateFolder, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while folder.in_use():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True

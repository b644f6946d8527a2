"""A whole cluster on this machine: coordinator, parameter servers and trainers as processes."""

import contextlib
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self, final

from gradmesh.launch.errors import ClusterFailed
from gradmesh.launch.logs import readable
from gradmesh.launch.plan import SERVER_ROLE, ClusterPlan, reachable_address
from gradmesh.launch.state import StateFolder
from gradmesh.launch.supervisor import Outcome, RestartPolicy, Supervisor
from gradmesh.sdk.transport.deadline import check_timeout

_log = logging.getLogger(__name__)

_START_S = 60.0
_DRAIN_S = 10.0
_SCALE_POLL_S = 0.2


@final
class LocalCluster:
    """A supervised cluster of real processes; a context manager.

        with gm.LocalCluster(parameter_servers=2) as cluster:
            print(cluster.address)

    It makes a random token, which its processes require of callers. This process and others of the
    same user find it by the address; callers without it are refused.

    Processes that die are restarted. Leaving the block ends all of them, and so does the end of
    this process, even by SIGKILL.

    Args:
        parameter_servers: Number of parameter servers, at least one.
        trainers: Number of trainers that run the configured job; 0 for your own training code.
        workers: Number of workers that serve functions, `worker-0` and so on; set the modules that
            they import by `{"rpc.imports": ["my.functions"]}`.
        config: TOML file that all processes read.
        state: Folder for logs and addresses; a temporary one by default, removed at the end.
        listen: Listen address of the coordinator; port 0 takes a free one, kept across restarts.
        settings: More settings by `section.key`, such as `{"job.steps": 100}`.
        until_done: Whether the cluster ends when all trainers are done.
        on_line: Called with process name and line of its log, from many threads.
        policy: Restart policy of the supervisor.
        start_timeout_s: Longest wait for the coordinator to serve; a minute by default.

    Raises:
        ValueError: A count is out of range.
    """

    def __init__(
        self,
        *,
        parameter_servers: int = 2,
        trainers: int = 0,
        workers: int = 0,
        config: Path | None = None,
        state: Path | None = None,
        listen: str = "127.0.0.1:0",
        settings: Mapping[str, Any] | None = None,
        until_done: bool = False,
        on_line: Callable[[str, str], None] = lambda name, line: None,
        policy: RestartPolicy | None = None,
        start_timeout_s: float | None = None,
    ) -> None:
        self._plan = ClusterPlan(
            parameter_servers=parameter_servers,
            trainers=trainers,
            workers=workers,
            config=config,
            listen=listen,
            settings=settings or {},
        )
        self._state = state
        self._until_done = until_done
        self._on_line = on_line
        self._policy = policy
        self._start_timeout_s = check_timeout(start_timeout_s, _START_S, "start_timeout_s")
        self._folder: StateFolder | None = None
        self._supervisor: Supervisor | None = None
        self._scaler: Scaler | None = None
        self._announced = False

    @property
    def folder(self) -> StateFolder:
        """Where logs and addresses are.

        Raises:
            RuntimeError: The cluster has not been started.
        """
        if self._folder is None:
            raise RuntimeError("the cluster does not run; use it in a with block or call start()")
        return self._folder

    @property
    def address(self) -> str:
        """The coordinator's address.

        Raises:
            RuntimeError: The cluster does not run.
        """
        address = reachable_address(self.folder)
        if address is None:
            raise RuntimeError("the cluster has ended; start another one")
        return address

    def start(self) -> Self:
        """Start all processes and wait until the coordinator serves.

        Raises:
            StateInUse: Another cluster runs in the state folder.
            ClusterFailed: A process could not be started; carries the tail of its log.
        """
        supervisor = self.launch()
        try:
            self._wait_until_ready(supervisor)
        except BaseException:
            self.stop()
            raise
        return self

    def launch(self) -> Supervisor:
        """Begin to start all processes and return at once.

        Raises:
            StateInUse: Another cluster runs in the state folder.
        """
        folder = StateFolder(self._state or Path(tempfile.mkdtemp(prefix="gradmesh-")))
        if folder.lock():
            _log.warning("cleaned what a dead supervisor left", extra={"state": str(folder.path)})
        self._folder = folder
        if self._plan.makes_token:
            folder.make_token()
        self._supervisor = self._new_supervisor(folder)
        self._supervisor.start()
        self._scaler = Scaler(self._supervisor, self._plan, folder)
        return self._supervisor

    @property
    def work_done(self) -> bool:
        """Whether all trainers have finished their job."""
        return self._supervisor is not None and self._supervisor.work_done

    def wait(self, timeout_s: float | None = None) -> Outcome | None:
        """Wait until all processes have ended; None when the timeout came first."""
        limit_s = None if timeout_s is None else check_timeout(timeout_s, 0)
        return None if self._supervisor is None else self._supervisor.wait(limit_s)

    def stop(self) -> Outcome | None:
        """End all processes in order, trainers first; may be called twice.

        Returns:
            How the cluster ended, or None if it was never started.
        """
        if self._scaler is not None:
            self._scaler.close()
        self.request_stop()
        outcome = self.wait()
        if self._folder is not None:
            self._folder.unlock()
            if self._state is None:
                shutil.rmtree(self._folder.path, ignore_errors=True)
        return outcome

    def request_stop(self) -> None:
        """Ask for an orderly end and return at once. Safe in signal handlers."""
        if self._supervisor is not None:
            self._supervisor.request_stop()

    def kill(self) -> None:
        """End all processes at once. Safe in signal handlers."""
        if self._supervisor is not None:
            self._supervisor.kill()

    def processes(self) -> list[dict[str, Any]]:
        """Return name, role, pid, restarts and state of each process."""
        return [] if self._supervisor is None else self._supervisor.describe()

    def failure(self, outcome: Outcome) -> ClusterFailed:
        """Return the error that says how the cluster failed, with the log of the failed process."""
        tail = self.folder.tail(outcome.child) if outcome.child else ()
        return ClusterFailed(
            outcome.reason, outcome.exit_code, tuple(readable(line) for line in tail)
        )

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _new_supervisor(self, folder: StateFolder) -> Supervisor:
        return Supervisor(
            self._plan.specs(folder),
            folder.log_file,
            on_line=self._on_line,
            on_change=self._record,
            policy=self._policy,
            until_done=self._until_done,
            ready_s=self._start_timeout_s,
            # A child ends itself at its own drain deadline; do not kill it earlier.
            grace_s=float(self._plan.settings.get("process.drain_s", _DRAIN_S)) + 2.0,
        )

    def _wait_until_ready(self, supervisor: Supervisor) -> None:
        deadline = time.monotonic() + self._start_timeout_s + 1.0
        while not supervisor.all_ready:
            outcome = supervisor.wait(0.02)
            if outcome is None and time.monotonic() > deadline:
                outcome = Outcome(4, "the cluster did not start in time", "coordinator")
            if outcome is not None:
                raise self.failure(outcome)

    def _record(self, processes: list[dict[str, Any]]) -> None:
        ready = self._supervisor is not None and self._supervisor.all_ready
        if ready and not self._announced:
            self._announced = True
            where = {"coordinator": self.address, "state": str(self.folder.path)}
            _log.info("the cluster is up; Ctrl-C or `gradmesh down` ends it", extra=where)
        # A user who removes the folder under a running cluster loses the record, not the cluster.
        with contextlib.suppress(FileNotFoundError):
            self.folder.write(
                {
                    "pid": os.getpid(),
                    "ready": ready,
                    "address": reachable_address(self.folder),
                    "parameter_servers": sum(p["role"] == SERVER_ROLE for p in processes),
                    "trainers": self._plan.trainers,
                    "children": processes,
                }
            )


@final
class Scaler:
    """A thread that starts added parameter servers and retires removed ones.

    `gradmesh scale` writes the number into the state folder: before it adds servers, and after
    the buckets of removed ones have migrated. The supervisor itself has no connection to the mesh.

    Args:
        supervisor: Runs the servers.
        plan: Makes the specification of a server.
        folder: Stores the number.
    """

    def __init__(self, supervisor: Supervisor, plan: ClusterPlan, folder: StateFolder) -> None:
        self._supervisor = supervisor
        self._plan = plan
        self._folder = folder
        self._count = plan.parameter_servers
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scaler", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closed.wait(_SCALE_POLL_S):
            wanted = self._folder.wanted_servers()
            if wanted is not None and wanted != self._count:
                self._fit(wanted)
                self._count = wanted

    def _fit(self, wanted: int) -> None:
        """Run servers 0 to wanted - 1, and no others."""
        running = {p["name"] for p in self._supervisor.describe() if p["role"] == SERVER_ROLE}
        needed = [self._plan.server(self._folder, number) for number in range(wanted)]
        missing = [spec for spec in needed if spec.name not in running]
        self._supervisor.change(missing, running - {spec.name for spec in needed})

    def close(self) -> None:
        """End the thread; may be called twice."""
        self._closed.set()
        self._thread.join(5.0)

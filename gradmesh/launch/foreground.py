"""Run a cluster in the foreground until it ends, and turn signals into its shutdown."""

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Protocol, final

from gradmesh.launch.errors import ClusterFailed, NoCluster
from gradmesh.launch.launcher import Launcher
from gradmesh.launch.supervisor import Outcome
from gradmesh.sdk.process.process import Lifecycle, LifecycleConfig

_POLL_S = 0.1
_STATUS_EVERY_S = 0.5
_LOGS_END_S = 10.0


class Stoppable(Protocol):
    """A cluster that `wait_for_end` waits for and stops."""

    def request_stop(self) -> None:
        """Ask for an orderly end and return at once."""

    def kill(self) -> None:
        """End everything at once."""

    def wait(self, timeout_s: float | None = None) -> Outcome | None:
        """Wait for the end; None when the timeout came first."""


def wait_for_end(cluster: Stoppable, drain_s: float) -> tuple[Outcome, int]:
    """Wait for the end of a cluster.

    The first SIGINT or SIGTERM asks for an orderly end, the second kills, the third gives up on
    waiting. Must be called in the main thread.

    Args:
        cluster: A running cluster.
        drain_s: Seconds an orderly end may take.

    Returns:
        How the cluster ended, and the exit code for that: 130 or 143 after a signal.
    """
    killed = False

    def end_now(code: int) -> None:
        nonlocal killed
        if killed:
            os._exit(code)
        killed = True
        cluster.kill()

    with Lifecycle(LifecycleConfig(drain_s=drain_s), end_now) as life:
        asked = False
        while (outcome := cluster.wait(_POLL_S)) is None:
            if life.stopping and not asked:
                asked = True
                cluster.request_stop()
        # Only a signal sets this code, but it may have arrived after the cluster failed.
        code = life.exit_code if asked and outcome.exit_code == 0 else outcome.exit_code
    return outcome, code


@final
class LauncherWatch:
    """Polls the status of a remote cluster, so that `wait_for_end` can wait for it.

    Args:
        launcher: Launcher of a running cluster.
        until_done: Whether to end when all trainers are done.
    """

    def __init__(self, launcher: Launcher, until_done: bool) -> None:
        self._launcher = launcher
        self._until_done = until_done
        self._stop = threading.Event()
        self._due = 0.0
        self.killed = False

    def request_stop(self) -> None:
        """End the wait."""
        self._stop.set()

    def kill(self) -> None:
        """End the wait, and let `follow_remote` kill the cluster."""
        self.killed = True
        self._stop.set()

    def wait(self, timeout_s: float | None = None) -> Outcome | None:
        """Poll the status at intervals; None when the timeout came first."""
        if self._stop.wait(timeout_s):
            return Outcome(0, "stopped on request")
        if time.monotonic() < self._due:
            return None
        self._due = time.monotonic() + _STATUS_EVERY_S
        try:
            view = self._launcher.status()
        except NoCluster:
            return Outcome(4, "the cluster was removed by another command")
        if view.failure:
            return Outcome(4, view.failure)
        for process in view.processes:
            if process.state == "failed":
                return Outcome(4, f"{process.name} failed for good; see its log", process.name)
        if self._until_done and view.work_done:
            return Outcome(0, "all work is done")
        return None


def follow_remote(
    launcher: Launcher,
    on_line: Callable[[str, str], None],
    drain_s: float,
    *,
    until_done: bool,
    tail: Callable[[Outcome], tuple[str, ...]],
    remove: Callable[[float], object],
) -> int:
    """Show the logs of a remote cluster until it ends, then remove it.

    Args:
        launcher: Launcher of a running cluster.
        on_line: Called with process and line of its log, from another thread.
        drain_s: Seconds an orderly end may take.
        until_done: Whether to end when all trainers are done.
        tail: Returns the last log lines of the failed process; called while the cluster exists.
        remove: Removes the cluster within a number of seconds; 0 kills it.

    Returns:
        The exit code; 130 or 143 after a signal.

    Raises:
        ClusterFailed: The cluster ended before its work was done.
    """

    def show() -> None:
        # A cluster that has ended already has no logs to follow.
        with contextlib.suppress(NoCluster):
            for name, line in launcher.logs(follow=True):
                on_line(name, line)

    watch = LauncherWatch(launcher, until_done)
    reader = threading.Thread(target=show, name="cluster-logs", daemon=True)
    try:
        reader.start()
        outcome, code = wait_for_end(watch, drain_s)
        log_tail = tail(outcome) if outcome.exit_code else ()
    finally:
        remove(0.0 if watch.killed else drain_s)
        reader.join(_LOGS_END_S)
    if outcome.exit_code:
        raise ClusterFailed(outcome.reason, outcome.exit_code, log_tail)
    return code

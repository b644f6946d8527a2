"""A cluster that runs elsewhere, as `stay` waits for it."""

import threading
import time
from typing import final

from gradmesh.launch.errors import NoCluster
from gradmesh.launch.launcher import Launcher
from gradmesh.launch.supervisor import Outcome

_LOOK_EVERY_S = 0.5


@final
class Watched:
    """Looks at a launcher's cluster until it is done, has failed, or should end.

    Args:
        launcher: Of a running cluster.
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
        """End the wait, and have the cluster killed."""
        self.killed = True
        self._stop.set()

    def wait(self, timeout_s: float | None = None) -> Outcome | None:
        """Look now and then; None when the timeout came first."""
        if self._stop.wait(timeout_s):
            return Outcome(0, "stopped on request")
        if time.monotonic() < self._due:
            return None
        self._due = time.monotonic() + _LOOK_EVERY_S
        try:
            view = self._launcher.status()
        except NoCluster:
            return Outcome(4, "the cluster was removed by somebody else")
        for process in view.processes:
            if process.state == "failed":
                return Outcome(4, f"{process.name} failed for good; see its log", process.name)
        if self._until_done and view.work_done:
            return Outcome(0, "all work is done")
        return None

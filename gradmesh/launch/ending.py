"""End a cluster that another process supervises."""

import contextlib
import os
import signal
import time

from gradmesh.launch.errors import NoCluster
from gradmesh.launch.state import StateFolder

_POLL_S = 0.05


def end_cluster(folder: StateFolder, timeout_s: float) -> bool:
    """Ask the supervisor of a state folder to end its cluster, and wait until it is gone.

    Args:
        folder: Where the cluster lives.
        timeout_s: After this the supervisor is killed; its children then end by themselves.

    Returns:
        Whether it ended in order.

    Raises:
        NoCluster: There is none.
    """
    pid = folder.supervisor_pid()
    if pid is None or not folder.in_use():
        raise NoCluster.in_folder(folder.path)
    # The lock is held, so the process id is that of a living supervisor.
    _signal(pid, signal.SIGTERM)
    if _wait_until_free(folder, timeout_s):
        return True
    _signal(pid, signal.SIGKILL)
    _wait_until_free(folder, timeout_s)
    # Taking the folder waits for the children of the dead supervisor and cleans up after it.
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

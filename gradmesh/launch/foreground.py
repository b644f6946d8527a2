"""Stay with a cluster until it ends, turning signals into its end."""

import os
from typing import Protocol

from gradmesh.launch.supervisor import Outcome
from gradmesh.sdk.process.process import Lifecycle, LifecycleConfig

_POLL_S = 0.1


class Cluster(Protocol):
    """What can be waited for and ended."""

    def request_stop(self) -> None:
        """Ask for an orderly end and return at once."""

    def kill(self) -> None:
        """End everything at once."""

    def wait(self, timeout_s: float | None = None) -> Outcome | None:
        """Wait for the end; None when the timeout came first."""


def stay(cluster: Cluster, drain_s: float) -> tuple[Outcome, int]:
    """Wait for the end of a cluster.

    The first SIGINT or SIGTERM asks for an orderly end, the second kills, the third gives up on
    waiting. Must be called in the main thread.

    Args:
        cluster: A running cluster.
        drain_s: Seconds an orderly end may take.

    Returns:
        How the cluster ended, and the exit code that says so: 130 or 143 after a signal.
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
        # Only a signal sets the code in here, but it may have come after the cluster failed.
        code = life.exit_code if asked and outcome.exit_code == 0 else outcome.exit_code
    return outcome, code

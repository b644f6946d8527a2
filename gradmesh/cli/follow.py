"""How a command stays with a training cluster: progress on the screen, Ctrl-C in order."""

import logging
import os
from pathlib import Path

from gradmesh.cli.progress import NoteHandler, progress_screen
from gradmesh.launch.local import LocalCluster
from gradmesh.launch.training import OnMetrics, watch
from gradmesh.sdk.cluster.status import ClusterStatus
from gradmesh.sdk.process.process import Lifecycle, LifecycleConfig

_DRAIN_S = 45.0


def follow(
    cluster: LocalCluster,
    title: str,
    folder: Path | None = None,
    on_metrics: OnMetrics = lambda line: None,
) -> tuple[ClusterStatus | None, int]:
    """Start a cluster and show its progress until its trainers are done.

    Args:
        cluster: Not started yet.
        title: What the screen says at the top.
        folder: Where the job writes, for `on_metrics`.
        on_metrics: Called with each report of progress.

    Returns:
        The last status, or None if the user ended it; and the exit code then.

    Raises:
        ClusterFailed: The cluster ended by itself.
    """

    def end_now(code: int) -> None:
        cluster.kill()
        os._exit(code)

    with Lifecycle(LifecycleConfig(drain_s=_DRAIN_S), end_now) as life:
        with progress_screen(title) as screen, cluster:
            logging.basicConfig(handlers=[NoteHandler(screen)], force=True)
            status = ClusterStatus()
            for status in watch(cluster, folder, on_metrics, lambda: life.stopping):
                screen.update(status)
            interrupted = life.stopping
        code = life.exit_code
    return (None if interrupted else status), code

"""How `gradmesh train --on kubernetes` stays with its job: progress, Ctrl-C, and the end of all."""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradmesh.cli.progress import NoteHandler, progress_screen
from gradmesh.launch.errors import ClusterFailed
from gradmesh.launch.kubernetes.api import KubernetesOptions
from gradmesh.launch.kubernetes.launcher import KubernetesLauncher
from gradmesh.launch.kubernetes.training import RemoteTraining, cluster_name, collect
from gradmesh.launch.launcher import ClusterRequest
from gradmesh.sdk.node.config import RpcConfig
from gradmesh.sdk.process.config import Sections
from gradmesh.sdk.process.network import SecurityConfig
from gradmesh.sdk.process.process import Lifecycle, LifecycleConfig
from gradmesh.services.config import CoordinatorConfig
from gradmesh.trainer.job.spec import job_spec_of

# Pods have 45 s to end, role after role.
_DRAIN_S = 180.0


def train_on_kubernetes(
    sections: Sections,
    config: Path,
    output: Path,
    title: str,
    name: str | None,
    options: KubernetesOptions,
    given: Mapping[str, Any],
) -> tuple[dict[str, float] | None, int]:
    """Train a job on a cluster of its own, and remove that whatever happens.

    Returns:
        The figures, or None if the user ended it; and the exit code then.

    Raises:
        ClusterFailed: The trainers were given up, or ended without a result.
    """
    spec = job_spec_of(sections)
    counts = sections[CoordinatorConfig]
    files = collect(config, spec, sections[RpcConfig].imports)
    launcher = KubernetesLauncher(name or cluster_name(config), options)
    request = ClusterRequest(
        parameter_servers=counts.parameter_servers,
        trainers=counts.trainers,
        # The report is written here; there, a folder of this machine means nothing.
        settings={**given, "job.output": "none"},
    )
    training = RemoteTraining(launcher, sections[SecurityConfig])

    def end_now(code: int) -> None:
        launcher.remove(0.0)
        os._exit(code)

    with Lifecycle(LifecycleConfig(drain_s=_DRAIN_S), end_now) as life:
        with progress_screen(title) as screen:
            logging.basicConfig(handlers=[NoteHandler(screen)], force=True)
            try:
                for status in training.watch(request, files, lambda: life.stopping):
                    screen.update(status)
                interrupted = life.stopping
            finally:
                if launcher.created:
                    launcher.remove(_DRAIN_S - 10.0)
                training.close()
        code = life.exit_code
    if interrupted:
        return None, code
    if not training.figures:
        raise ClusterFailed("the trainers ended without a result; see their logs", 4)
    training.write(output, spec)
    return training.figures, 0

"""Follow a training cluster from a command: progress on the screen, orderly end on Ctrl-C."""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradmesh.cli.display import NoteHandler, progress_screen
from gradmesh.launch.errors import ClusterFailed
from gradmesh.launch.job_secrets import secret_files
from gradmesh.launch.launcher import ClusterRequest
from gradmesh.launch.local import LocalCluster
from gradmesh.launch.training import watch
from gradmesh.sdk.cluster.status import ClusterStatus
from gradmesh.sdk.process.config import Sections, section_as_dict
from gradmesh.sdk.process.network import SecurityConfig
from gradmesh.sdk.process.process import Lifecycle, LifecycleConfig

if TYPE_CHECKING:
    from gradmesh.launch.kubernetes.api import KubernetesOptions

_LOCAL_DRAIN_S = 45.0
# Pods have 45 s to end, role after role.
_KUBERNETES_DRAIN_S = 180.0
_KUBERNETES_REMOVE_S = _KUBERNETES_DRAIN_S - 10.0


def follow(cluster: LocalCluster, title: str) -> tuple[ClusterStatus | None, int]:
    """Start a cluster and show its progress until its trainers are done.

    Args:
        cluster: A cluster that is not started yet.
        title: First line of the screen.

    Returns:
        The last status, or None if the user ended it; and the exit code then.

    Raises:
        ClusterFailed: The cluster failed.
    """

    def statuses(is_stopping: Callable[[], bool]) -> Iterable[ClusterStatus]:
        return watch(cluster, is_stopping=is_stopping)

    return _follow(title, cluster, statuses, cluster.kill, _LOCAL_DRAIN_S)


def train_on_kubernetes(
    sections: Sections,
    config: Path,
    output: Path,
    title: str,
    name: str | None,
    options: "KubernetesOptions",
    given: Mapping[str, Any],
) -> tuple[dict[str, float] | None, int]:
    """Train a job on a cluster of its own, and always remove that cluster in the end.

    Args:
        sections: All settings.
        config: The job's file.
        output: Folder for the report.
        title: First line of the screen.
        name: Name of the cluster; derived from the file's name by default.
        options: The Kubernetes cluster and namespace.
        given: Settings of the command line by `section.key`.

    Returns:
        The results, or None if the user ended it; and the exit code then.

    Raises:
        ClusterFailed: The trainers were given up, or ended without a result.
    """
    # Imported here: a local cluster does not need them.
    from gradmesh.launch.kubernetes.launcher import KubernetesLauncher
    from gradmesh.launch.kubernetes.training import RemoteTraining, cluster_name, collect
    from gradmesh.sdk.node.config import RpcConfig
    from gradmesh.services.config import CoordinatorConfig
    from gradmesh.trainer.job.spec import job_spec_of

    spec = job_spec_of(sections)
    counts = sections[CoordinatorConfig]
    secrets = secret_files(_by_key(sections[SecurityConfig]))
    files = collect(config, spec, sections[RpcConfig].imports, secrets)
    launcher = KubernetesLauncher(name or cluster_name(config), options)
    request = ClusterRequest(
        parameter_servers=counts.parameter_servers,
        trainers=counts.trainers,
        # The report is written here: pods cannot write to a folder of this machine.
        settings={**given, "job.output": "none"},
    )
    training = RemoteTraining(launcher, sections[SecurityConfig])

    @contextmanager
    def removed() -> Iterator[None]:
        try:
            yield
        finally:
            if launcher.created:
                launcher.remove(_KUBERNETES_REMOVE_S)
            training.close()

    status, code = _follow(
        title,
        removed(),
        lambda is_stopping: training.watch(request, files, is_stopping),
        lambda: launcher.remove(0.0),
        _KUBERNETES_DRAIN_S,
    )
    if status is None:
        return None, code
    if not training.figures:
        raise ClusterFailed("the trainers ended without a result; see their logs", 4)
    training.write(output, spec)
    return training.figures, 0


def _by_key(security: SecurityConfig) -> dict[str, Any]:
    return {f"{security.section}.{name}": v for name, v in section_as_dict(security).items()}


def _follow(
    title: str,
    cluster: AbstractContextManager[object],
    statuses: Callable[[Callable[[], bool]], Iterable[ClusterStatus]],
    kill: Callable[[], object],
    drain_s: float,
) -> tuple[ClusterStatus | None, int]:
    """Show statuses until there are no more.

    Args:
        title: First line of the screen.
        cluster: Runs while the statuses are read.
        statuses: Returns them; takes a function that returns whether the user asked to stop.
        kill: Ends everything at once.
        drain_s: Seconds an orderly end may take.

    Returns:
        The last status, or None if the user ended it; and the exit code then.
    """

    def end_now(code: int) -> None:
        kill()
        os._exit(code)

    with Lifecycle(LifecycleConfig(drain_s=drain_s), end_now) as life:
        with progress_screen(title) as screen, cluster:
            logging.basicConfig(handlers=[NoteHandler(screen)], force=True)
            status = ClusterStatus()
            for status in statuses(lambda: life.stopping):
                screen.update(status)
            interrupted = life.stopping
        code = life.exit_code
    return (None if interrupted else status), code

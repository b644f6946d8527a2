"""`gradmesh demo`: the first screen."""

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from gradmesh.cli.progress import Figures, progress_screen
from gradmesh.launch.errors import ClusterFailed
from gradmesh.launch.local import LocalCluster
from gradmesh.launch.policy import RestartPolicy
from gradmesh.protos.errors import GradmeshError
from gradmesh.sdk.process.lifecycle import Lifecycle, LifecycleConfig
from gradmesh.sdk.process.security import SecurityConfig
from gradmesh.sdk.status import ClusterStatus, fetch

_POLL_S = 0.25
_ASK_S = 2.0
_DRAIN_S = 45.0


@click.command()
@click.option("--parameter-servers", type=click.IntRange(1, 64), default=2, help="[default: 2]")
@click.option("--trainers", type=click.IntRange(1, 64), default=2, help="[default: 2]")
@click.option("--steps", type=click.IntRange(1), help="Steps to train; the job's own by default.")
@click.option("--seed", type=click.IntRange(0), help="Seed of data and parameters.")
@click.option("--keep-logs", is_flag=True, help="Keep the state folder and say where it is.")
def demo(
    parameter_servers: int, trainers: int, steps: int | None, seed: int | None, keep_logs: bool
) -> int:
    """Train a small model on a local cluster, from start to finish.

    Starts a coordinator, parameter servers and trainers as processes of this machine, trains a
    model on generated click data, shows how well it did, and leaves nothing behind.
    """
    state = Path(tempfile.mkdtemp(prefix="gradmesh-demo-")) if keep_logs else None
    cluster = LocalCluster(
        parameter_servers=parameter_servers,
        trainers=trainers,
        state=state,
        settings={"job.steps": steps, "job.seed": seed},
        policy=RestartPolicy(most_in_a_row=2),
    )
    try:
        return _train(cluster, f"{parameter_servers} parameter servers, {trainers} trainers")
    finally:
        if state is not None:
            click.echo(f"logs are in {state / 'logs'}")


def _train(cluster: LocalCluster, title: str) -> int:
    begun = time.monotonic()

    def end_now(code: int) -> None:
        cluster.kill()
        os._exit(code)

    with Lifecycle(LifecycleConfig(drain_s=_DRAIN_S), end_now) as life:
        with cluster, progress_screen(title) as screen:
            status = ClusterStatus()
            while not life.stopping and not cluster.work_done:
                _raise_failure(cluster)
                status = _ask(cluster, status)
                screen.update(status)
            interrupted = life.stopping
            status = _ask(cluster, status)
            screen.update(status)
        code = life.exit_code
    if interrupted:
        return code
    return _finish(status, time.monotonic() - begun)


def _raise_failure(cluster: LocalCluster) -> None:
    outcome = cluster.wait(_POLL_S)
    if outcome is not None:
        raise cluster.failure(outcome)


def _ask(cluster: LocalCluster, last: ClusterStatus) -> ClusterStatus:
    try:
        return fetch(cluster.address, SecurityConfig(), _ASK_S)
    except GradmeshError:
        # The coordinator may be on its way back; the supervisor knows whether it is lost.
        return last


def _finish(status: ClusterStatus, seconds: float) -> int:
    if not status.result:
        raise ClusterFailed("the trainers ended without a result; run again with --keep-logs", 4)
    result: dict[str, Any] = {"bytes_moved": status.bytes_moved, **status.result}
    Figures({**result, "seconds": seconds}).show()
    return 0

"""`gradmesh report`: follow a training run until it is done, and show its results."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click

from gradmesh.cli.cluster_options import address_of, coordinator_option, with_launcher
from gradmesh.cli.display import ResultTable, progress_screen
from gradmesh.cli.options import configured
from gradmesh.cli.output import echo
from gradmesh.launch.errors import ClusterFailed
from gradmesh.launch.launcher import Launcher
from gradmesh.launch.training import result_of, with_last_progress
from gradmesh.protos.errors import MeshError
from gradmesh.sdk.cluster.status import ClusterStatus, fetch
from gradmesh.sdk.process.config import Sections
from gradmesh.sdk.process.network import SecurityConfig

_POLL_S = 0.5
_ASK_S = 2.0
_OUT_OF_REACH = 3
_OLD_RESULT_S = 10.0


@click.command()
@coordinator_option
@click.option(
    "--patience-s",
    type=click.FloatRange(min=0.1),
    default=600.0,
    help="Seconds without progress after which it gives up.  [default: 600]",
)
@with_launcher
@configured(SecurityConfig)
def report(
    sections: Sections,
    config: Path | None,
    launcher: Launcher,
    coordinator: str | None,
    patience_s: float,
) -> int:
    """Follow a training run until it is done, and show its results."""
    address = address_of(coordinator, launcher)
    status = ClusterStatus()
    with progress_screen(f"gradmesh report: following {address}") as screen:
        for status in statuses(address, sections[SecurityConfig], patience_s):
            screen.update(status)
    ResultTable(result_of(status)).show()
    echo("training is done; the servers keep the tables until you end them")
    return 0


def statuses(address: str, security: SecurityConfig, patience_s: float) -> Iterator[ClusterStatus]:
    """Yield the status of a cluster repeatedly, the last time with the run's result.

    A result that exists at the start belongs to an older run if trainers join soon.

    Raises:
        ClusterFailed: No progress for `patience_s`.
    """
    status, why = ClusterStatus(), "training does not begin; look at the logs"
    moved, begun, is_old = time.monotonic(), time.monotonic(), None
    while True:
        before = _movement(status)
        try:
            status = with_last_progress(status, fetch(address, security, _ASK_S))
        except MeshError as error:
            # The coordinator may be starting, or restarting.
            why = error.message
        if is_old is None and status.version:
            is_old = bool(status.result)
        if before != _movement(status):
            moved, why = time.monotonic(), f"nothing new since step {status.step}; see the logs"
        elif time.monotonic() - moved > patience_s:
            raise ClusterFailed(f"no progress in {patience_s:g} s: {why}", _OUT_OF_REACH)
        training = any(member.role == "trainer" for member in status.members)
        is_old = is_old and not training
        waited = not is_old or time.monotonic() - begun > _OLD_RESULT_S
        if status.result and not training and waited:
            yield status
            return
        yield replace(status, result={})
        time.sleep(_POLL_S)


def _movement(status: ClusterStatus) -> tuple[int, int, int]:
    return status.generation, status.step, len(status.members)

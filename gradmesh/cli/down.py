"""`gradmesh down`."""

from pathlib import Path

import click

from gradmesh.cli.state_option import state_option
from gradmesh.launch.ending import end_cluster
from gradmesh.launch.state import StateFolder


@click.command()
@state_option
@click.option(
    "--timeout-s",
    type=click.FloatRange(min=0.1),
    default=60.0,
    help="Seconds to wait for an orderly end before the cluster is killed.  [default: 60]",
)
def down(state: Path, timeout_s: float) -> int:
    """End the local cluster that `up` started."""
    in_order = end_cluster(StateFolder(state), timeout_s)
    click.echo("the cluster has ended" if in_order else "the cluster did not drain and was killed")
    return 0

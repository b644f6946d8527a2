"""`gradmesh down`."""

import click

from gradmesh.cli.launcher_option import with_launcher
from gradmesh.launch.launcher import Launcher


@click.command()
@click.option(
    "--timeout-s",
    type=click.FloatRange(min=0.1),
    default=60.0,
    help="Seconds to wait for an orderly end before the cluster is killed.  [default: 60]",
)
@with_launcher
def down(launcher: Launcher, timeout_s: float) -> int:
    """End the cluster that `up` started."""
    in_order = launcher.down(timeout_s)
    click.echo("the cluster has ended" if in_order else "the cluster did not drain and was killed")
    return 0

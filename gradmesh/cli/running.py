"""`gradmesh logs` and `gradmesh down`: commands on the processes of a running cluster."""

import sys

import click

from gradmesh.cli.cluster_options import with_launcher
from gradmesh.cli.output import echo
from gradmesh.launch.launcher import Launcher
from gradmesh.launch.screen import LogScreen
from gradmesh.sdk.process.log import LogConfig


@click.command()
@click.option(
    "--timeout-s",
    type=click.FloatRange(min=0.1),
    default=60.0,
    help="Seconds to wait for the cluster to drain before it is killed.  [default: 60]",
)
@with_launcher
def down(launcher: Launcher, timeout_s: float) -> int:
    """End the cluster that `up` started."""
    in_order = launcher.down(timeout_s)
    echo("the cluster has ended" if in_order else "the cluster did not drain and was killed")
    return 0


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("-f", "--follow", is_flag=True, help="Follow the logs until the cluster has ended.")
@click.option("--tail", type=click.IntRange(0), help="Number of last lines of each process.")
@with_launcher
def logs(launcher: Launcher, names: tuple[str, ...], follow: bool, tail: int | None) -> int:
    """Show the logs of a cluster's processes, all or those named, as lines on standard output."""
    screen = LogScreen(sys.stdout, LogConfig().pretty_on(sys.stdout))
    for name, line in launcher.logs(names, follow=follow, tail=tail):
        screen.write(name, line)
    return 0

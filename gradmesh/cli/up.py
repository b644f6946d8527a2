"""`gradmesh up`."""

import logging
import sys
from pathlib import Path

import click

from gradmesh.cli.cluster import drain_s, for_children, listen_address, not_flags
from gradmesh.cli.cluster_options import with_launcher
from gradmesh.cli.options import configured
from gradmesh.cli.output import echo
from gradmesh.launch.launcher import ClusterRequest, Launcher
from gradmesh.launch.screen import LogScreen, ScreenHandler
from gradmesh.launch.sections import cluster_sections
from gradmesh.sdk.process.config import Sections
from gradmesh.sdk.process.log import LogConfig
from gradmesh.services.config import CoordinatorConfig


@click.command()
@click.option("--detach", is_flag=True, help="Return once the cluster runs in the background.")
@click.option("--workers", type=click.IntRange(0), default=0, help="Workers that serve functions.")
@click.option("--exit-when-done", is_flag=True, help="End the cluster when all trainers are done.")
@with_launcher
@configured(*cluster_sections(), without=not_flags())
def up(
    sections: Sections,
    config: Path | None,
    launcher: Launcher,
    detach: bool,
    workers: int,
    exit_when_done: bool,
) -> int:
    """Start a cluster and run it in the foreground.

    A process that dies is restarted. One Ctrl-C drains all of them in order, a second one kills.
    """
    request = ClusterRequest(
        parameter_servers=sections[CoordinatorConfig].parameter_servers,
        trainers=sections[CoordinatorConfig].trainers,
        workers=workers,
        settings=for_children(sections),
        config=config,
        listen=listen_address(sections),
        until_done=exit_when_done,
    )
    if detach:
        address = launcher.up(request)
        where = f", coordinator at {address}" if launcher.address_lasts else ""
        echo(f"the cluster is up{where}; `gradmesh down` ends it")
        return 0
    return launcher.run(request, _screen(sections[LogConfig]).write, drain_s(sections))


def _screen(config: LogConfig) -> LogScreen:
    screen = LogScreen(sys.stderr, config.pretty_on(sys.stderr))
    logging.basicConfig(level=config.level.upper(), handlers=[ScreenHandler(screen)], force=True)
    return screen

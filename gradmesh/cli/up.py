"""`gradmesh up`."""

import logging
import sys
from pathlib import Path

import click

from gradmesh.cli.cluster import (
    CLUSTER_SECTIONS,
    drain_s,
    for_children,
    given_by_flag,
    listen_address,
    not_flags,
)
from gradmesh.cli.options import configured
from gradmesh.cli.state_option import state_option
from gradmesh.launch.command import flags
from gradmesh.launch.detach import start_detached
from gradmesh.launch.foreground import stay
from gradmesh.launch.local import LocalCluster
from gradmesh.launch.screen import LogScreen, ScreenHandler
from gradmesh.launch.state import StateFolder
from gradmesh.sdk.process.config import Sections
from gradmesh.sdk.process.log import LogConfig
from gradmesh.services.coordinator.config import CoordinatorConfig


@click.command()
@state_option
@click.option("--detach", is_flag=True, help="Return once the cluster runs in the background.")
@click.option("--workers", type=click.IntRange(0), default=0, help="Workers that serve functions.")
@click.option("--exit-when-done", is_flag=True, help="End the cluster when all trainers are done.")
@configured(*CLUSTER_SECTIONS, without=not_flags())
def up(
    sections: Sections,
    config: Path | None,
    state: Path,
    detach: bool,
    workers: int,
    exit_when_done: bool,
) -> int:
    """Start a local cluster and stay with it.

    A process that dies is restarted. One Ctrl-C ends all of them in order, a second one at once.
    """
    if detach:
        extra = ("--exit-when-done",) if exit_when_done else ()
        extra = (*extra, "--workers", str(workers))
        arguments = (*flags(given_by_flag(sections), CLUSTER_SECTIONS), *extra)
        address = start_detached(StateFolder(state), arguments, config)
        click.echo(f"the cluster is up, coordinator at {address}; `gradmesh down` ends it")
        return 0
    screen = _screen(sections[LogConfig])
    cluster = LocalCluster(
        parameter_servers=sections[CoordinatorConfig].parameter_servers,
        trainers=sections[CoordinatorConfig].trainers,
        workers=workers,
        config=config,
        state=state,
        listen=listen_address(sections),
        settings=for_children(sections),
        until_done=exit_when_done,
        on_line=screen.write,
    )
    cluster.launch()
    try:
        outcome, code = stay(cluster, drain_s(sections))
    finally:
        cluster.stop()
    if outcome.exit_code != 0:
        raise cluster.failure(outcome)
    return code


def _screen(config: LogConfig) -> LogScreen:
    screen = LogScreen(sys.stderr, config.pretty_on(sys.stderr))
    logging.basicConfig(level=config.level.upper(), handlers=[ScreenHandler(screen)], force=True)
    return screen

"""The options by which commands find a cluster that `up` started: --on, --state, --name."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import click

from gradmesh.cli.options import Command
from gradmesh.launch.launchers import Place, launcher


def with_launcher(function: Callable[..., int]) -> Command:
    """Give a command a `launcher` by --on, --state and --name."""

    @functools.wraps(function)
    def call(on: Place, state: Path, cluster_name: str, **parameters: Any) -> int:
        return function(launcher=launcher(on, state=state, name=cluster_name), **parameters)

    command: Command = call
    for option in (
        click.option(
            "--name",
            "cluster_name",  # `name` is what many commands call their argument
            default="gradmesh",
            envvar="GRADMESH_NAME",
            help="Name of a cluster that is not local.  [env: GRADMESH_NAME; default: gradmesh]",
        ),
        click.option(
            "--state",
            type=click.Path(path_type=Path, file_okay=False),
            default=Path(".gradmesh"),
            envvar="GRADMESH_STATE",
            help="State folder of a local cluster.  [env: GRADMESH_STATE; default: .gradmesh]",
        ),
        click.option(
            "--on",
            type=click.Choice(get_args(Place)),
            default="local",
            envvar="GRADMESH_ON",
            help="Where the cluster runs.  [env: GRADMESH_ON; default: local]",
        ),
    ):
        command = option(command)
    return command

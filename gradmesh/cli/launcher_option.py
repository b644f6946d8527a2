"""The options by which commands find a cluster that `up` started: --on, --state, --name."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import click

from gradmesh.cli.options import Command
from gradmesh.launch.kubernetes.api import KubernetesOptions
from gradmesh.launch.launcher import LauncherName, open_launcher


def with_launcher(function: Callable[..., int]) -> Command:
    """Give a command a `launcher` by --on, --state, --name and the options of Kubernetes."""

    @functools.wraps(function)
    def call(
        on: LauncherName,
        state: Path,
        cluster_name: str,
        kubernetes: KubernetesOptions,
        **parameters: Any,
    ) -> int:
        made = open_launcher(on, state=state, name=cluster_name, kubernetes=kubernetes)
        return function(launcher=made, **parameters)

    command: Command = with_kubernetes(call)
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
        on_option,
    ):
        command = option(command)
    return command


on_option = click.option(
    "--on",
    type=click.Choice(get_args(LauncherName)),
    default="local",
    envvar="GRADMESH_ON",
    help="Where the cluster runs.  [env: GRADMESH_ON; default: local]",
)


def with_kubernetes(function: Callable[..., int]) -> Command:
    """Give a command `kubernetes`: which one, and where in it."""

    @functools.wraps(function)
    def call(
        namespace: str,
        context: str | None,
        kubeconfig: Path | None,
        image: str | None,
        **parameters: Any,
    ) -> int:
        options = KubernetesOptions(
            namespace=namespace, context=context, kubeconfig=kubeconfig, image=image
        )
        return function(kubernetes=options, **parameters)

    command: Command = call
    for option in (
        click.option(
            "--image",
            envvar="GRADMESH_IMAGE",
            help="Image that containers run.  [env: GRADMESH_IMAGE; default: that of this version]",
        ),
        click.option(
            "--kubeconfig",
            type=click.Path(path_type=Path, exists=True, dir_okay=False),
            help="File that says which Kubernetes.  [default: as kubectl has it]",
        ),
        click.option(
            "--context",
            envvar="GRADMESH_CONTEXT",
            help="Context in it.  [env: GRADMESH_CONTEXT; default: the current one]",
        ),
        click.option(
            "--namespace",
            default="gradmesh",
            envvar="GRADMESH_NAMESPACE",
            help="Namespace there.  [env: GRADMESH_NAMESPACE; default: gradmesh]",
        ),
    ):
        command = option(command)
    return command

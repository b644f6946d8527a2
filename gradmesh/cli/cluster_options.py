"""The options by which commands find a cluster: --on, --state, --name, or --coordinator."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import click

from gradmesh.cli.options import Command, configured
from gradmesh.launch.kubernetes.api import KubernetesOptions
from gradmesh.launch.launcher import Launcher, LauncherName, open_launcher
from gradmesh.sdk.process.config import Sections
from gradmesh.sdk.process.network import SecurityConfig, reachable
from gradmesh.sdk.process.setting import ConfigError, Problem


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
            "cluster_name",  # many commands have an argument `name`
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


coordinator_option = click.option(
    "--coordinator", metavar="ADDRESS", help="Use the coordinator at this address."
)

on_option = click.option(
    "--on",
    type=click.Choice(get_args(LauncherName)),
    default="local",
    envvar="GRADMESH_ON",
    help="Where the cluster runs.  [env: GRADMESH_ON; default: local]",
)


def with_kubernetes(function: Callable[..., int]) -> Command:
    """Give a command `kubernetes`: the options that select a cluster and a namespace."""

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
            help="Image of the containers.  [env: GRADMESH_IMAGE; default: that of this version]",
        ),
        click.option(
            "--kubeconfig",
            type=click.Path(path_type=Path, exists=True, dir_okay=False),
            help="File that configures access to Kubernetes.  [default: kubectl's]",
        ),
        click.option(
            "--context",
            envvar="GRADMESH_CONTEXT",
            help="Context of the kubeconfig.  [env: GRADMESH_CONTEXT; default: the current one]",
        ),
        click.option(
            "--namespace",
            default="gradmesh",
            envvar="GRADMESH_NAMESPACE",
            help="Kubernetes namespace.  [env: GRADMESH_NAMESPACE; default: gradmesh]",
        ),
    ):
        command = option(command)
    return command


def with_mesh(
    default_timeout_s: float, *, with_processes: bool = False
) -> Callable[[Callable[..., int]], Command]:
    """Give a command a connected `mesh` and `timeout_s`.

    Args:
        default_timeout_s: Seconds that the whole command may take.
        with_processes: Whether to give it `launcher`, too; None if the user gave the coordinator's
            address.
    """

    def decorate(function: Callable[..., int]) -> Command:
        @functools.wraps(function)
        def call(
            sections: Sections,
            config: Path | None,
            launcher: Launcher,
            coordinator: str | None,
            timeout_s: float,
            **parameters: Any,
        ) -> int:
            # Imported here, so that commands without a mesh start fast.
            from gradmesh.sdk.mesh.connect import connect
            from gradmesh.sdk.transport.policy import Timeouts

            address = address_of(coordinator, launcher)
            if with_processes:
                parameters["launcher"] = None if coordinator else launcher
            security = sections[SecurityConfig]
            wait_s = min(timeout_s, 30.0)
            timeouts = Timeouts(join_s=wait_s, call_s=wait_s)
            with connect(address, security=security, timeouts=timeouts) as mesh:
                return function(mesh=mesh, timeout_s=timeout_s, **parameters)

        command: Command = with_launcher(configured(SecurityConfig)(call))
        for option in (
            click.option(
                "--timeout-s",
                type=click.FloatRange(min=0.1),
                default=default_timeout_s,
                help=f"Deadline of the whole command in seconds.  [default: {default_timeout_s:g}]",
            ),
            coordinator_option,
        ):
            command = option(command)
        return command

    return decorate


def address_of(coordinator: str | None, launcher: Launcher) -> str:
    """Return the coordinator's address: the one that the user gave, or that of the launcher.

    Raises:
        ConfigError: The user's text is not an address.
        NoCluster: The launcher has no cluster.
    """
    return checked(coordinator) if coordinator else launcher.status().address


def checked(coordinator: str) -> str:
    """Return the address that a user gave.

    Raises:
        ConfigError: It is not an address.
    """
    try:
        return reachable(coordinator)
    except ValueError as error:
        raise ConfigError([Problem("--coordinator", str(error), "flag")]) from None

"""The options by which a command finds a running mesh: --coordinator, --on, --state, security."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from gradmesh.cli.launcher_option import with_launcher
from gradmesh.cli.options import Command, configured
from gradmesh.launch.launcher import Launcher
from gradmesh.sdk.mesh.connect import connect
from gradmesh.sdk.process.config import Sections
from gradmesh.sdk.process.network import SecurityConfig, reachable
from gradmesh.sdk.process.setting import ConfigError, Problem


def with_mesh(
    default_timeout_s: float, *, with_processes: bool = False
) -> Callable[[Callable[..., int]], Command]:
    """Give a command a connected `mesh` and `timeout_s`.

    Args:
        default_timeout_s: Seconds that the whole command may take.
        with_processes: Whether to give it `launcher`, too: who runs the mesh, or None if that was
            named by its coordinator.
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
            address = checked(coordinator) if coordinator else launcher.status().address
            if with_processes:
                parameters["launcher"] = None if coordinator else launcher
            security = sections[SecurityConfig]
            with connect(address, security=security, timeout_s=min(timeout_s, 30.0)) as mesh:
                return function(mesh=mesh, timeout_s=timeout_s, **parameters)

        command: Command = with_launcher(configured(SecurityConfig)(call))
        for option in (
            click.option(
                "--timeout-s",
                type=click.FloatRange(min=0.1),
                default=default_timeout_s,
                help=f"Seconds that all of it may take.  [default: {default_timeout_s:g}]",
            ),
            click.option(
                "--coordinator",
                metavar="ADDRESS",
                help="Ask this coordinator, wherever it runs.",
            ),
        ):
            command = option(command)
        return command

    return decorate


def checked(coordinator: str) -> str:
    """Return the address that a user gave, if it is one.

    Raises:
        ConfigError: It is none.
    """
    try:
        return reachable(coordinator)
    except ValueError as error:
        raise ConfigError([Problem("--coordinator", str(error), "flag")]) from None

"""The options by which a command finds a running mesh: --coordinator, --state, security."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from gradmesh.cli.options import Command, configured
from gradmesh.cli.state_option import state_option
from gradmesh.launch.errors import NoCluster
from gradmesh.launch.state import StateFolder
from gradmesh.sdk.mesh.connect import connect
from gradmesh.sdk.process.address import reachable
from gradmesh.sdk.process.config import Sections
from gradmesh.sdk.process.errors import ConfigError, Problem
from gradmesh.sdk.process.security import SecurityConfig


def with_mesh(default_timeout_s: float) -> Callable[[Callable[..., int]], Command]:
    """Give a command a connected `mesh` and `timeout_s`.

    Args:
        default_timeout_s: Seconds that the whole command may take.
    """

    def decorate(function: Callable[..., int]) -> Command:
        @functools.wraps(function)
        def call(
            sections: Sections,
            config: Path | None,
            state: Path,
            coordinator: str | None,
            timeout_s: float,
            **parameters: Any,
        ) -> int:
            address = coordinator or _local(StateFolder(state))
            _check(address)
            security = sections[SecurityConfig]
            with connect(address, security=security, timeout_s=min(timeout_s, 30.0)) as mesh:
                return function(mesh=mesh, timeout_s=timeout_s, **parameters)

        command: Command = configured(SecurityConfig)(call)
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
                help="Ask this coordinator, not the state folder.",
            ),
            state_option,
        ):
            command = option(command)
        return command

    return decorate


def _local(folder: StateFolder) -> str:
    record = folder.read()
    if record is None or not folder.in_use() or record.get("address") is None:
        raise NoCluster(folder.path)
    address: str = record["address"]
    return address


def _check(address: str) -> None:
    try:
        reachable(address)
    except ValueError as error:
        raise ConfigError([Problem("--coordinator", str(error), "flag")]) from None

"""The command: run all checks, print them, and what to do last."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
from rich.text import Text

from gradmesh.cli.cluster_options import address_of, coordinator_option, with_launcher
from gradmesh.cli.display import output_console
from gradmesh.cli.doctor.connection import connection_findings
from gradmesh.cli.doctor.files import UNUSABLE, file_findings
from gradmesh.cli.doctor.finding import Finding, note
from gradmesh.cli.doctor.machine import machine_findings
from gradmesh.cli.options import configured, json_option
from gradmesh.cli.output import echo_json
from gradmesh.launch.errors import NoCluster
from gradmesh.launch.launcher import Launcher
from gradmesh.protos.rpcs import ROLES
from gradmesh.sdk.process.config import Sections
from gradmesh.sdk.process.network import SecurityConfig

_STYLES = {"ok": ("✓", "green"), "note": ("!", "yellow"), "problem": ("✗", "red")}


@click.command()
@coordinator_option
@click.option(
    "--role",
    type=click.Choice(ROLES),
    help="Role that this process should have; its certificate is checked for it.",
)
@json_option
@click.option(
    "--timeout-s",
    type=click.FloatRange(min=0.1),
    default=5.0,
    help="Longest wait of each step.  [default: 5]",
)
@with_launcher
@configured(SecurityConfig)
def doctor(
    sections: Sections,
    config: Path | None,
    launcher: Launcher,
    coordinator: str | None,
    role: str | None,
    as_json: bool,
    timeout_s: float,
) -> int:
    """Find out why processes cannot reach each other.

    Checks this machine, the files of [security], and the way to a coordinator, with the settings
    that a process would use. The exit code is 0 if all is well, 1 if not; what to do comes last.
    """
    found = list(_findings(sections[SecurityConfig], launcher, coordinator, role, timeout_s))
    healthy = all(one.state != "problem" for one in found)
    if as_json:
        checks = [dataclasses.asdict(one) for one in found]
        echo_json({"healthy": healthy, "checks": checks})
    else:
        _print(found)
    return 0 if healthy else 1


def _findings(
    security: SecurityConfig,
    launcher: Launcher,
    coordinator: str | None,
    role: str | None,
    timeout_s: float,
) -> Iterator[Finding]:
    yield from machine_findings()
    files = list(file_findings(security, role))
    yield from files
    if any(one.check == UNUSABLE and one.state == "problem" for one in files):
        return
    try:
        address = address_of(coordinator, launcher)
    except NoCluster as error:
        remedy = "name a coordinator with --coordinator to check the way to it"
        yield note("coordinator", "finding the cluster of this folder", str(error), remedy)
        return
    yield from connection_findings(address, security, timeout_s)


def _print(found: Sequence[Finding]) -> None:
    console = output_console()
    for one in found:
        mark, style = _STYLES[one.state]
        seen = _printable(f"{mark} {one.check}: {one.seen}")
        console.print(Text(seen, style=style), soft_wrap=True)
        if one.state != "ok":
            console.print(Text(_printable(f"    tried: {one.tried}")), soft_wrap=True)
    remedies = [f"{one.check}: {one.remedy}" for one in found if one.remedy]
    if remedies:
        console.print(Text("\nWhat to do:"))
        for remedy in remedies:
            console.print(Text(_printable(f"  {remedy}")), soft_wrap=True)


def _printable(text: str) -> str:
    """Replace control characters: names in certificates and messages come from the other side."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)

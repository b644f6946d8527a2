"""`gradmesh status`."""

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import click

from gradmesh.cli.options import configured
from gradmesh.cli.state_option import state_option
from gradmesh.launch.errors import NoCluster
from gradmesh.launch.state import StateFolder
from gradmesh.sdk.process.address import reachable
from gradmesh.sdk.process.config import Sections
from gradmesh.sdk.process.errors import ConfigError, Problem
from gradmesh.sdk.process.security import SecurityConfig
from gradmesh.sdk.status import ClusterStatus, fetch


@click.command()
@state_option
@click.option(
    "--coordinator", metavar="ADDRESS", help="Ask this coordinator, not the state folder."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--watch", is_flag=True, help="Show it again and again until interrupted.")
@click.option(
    "--every-s", type=click.FloatRange(min=0.1), default=1.0, help="With --watch.  [default: 1]"
)
@click.option("--timeout-s", type=click.FloatRange(min=0.1), default=5.0, help="[default: 5]")
@configured(SecurityConfig)
def status(
    sections: Sections,
    config: Path | None,
    state: Path,
    coordinator: str | None,
    as_json: bool,
    watch: bool,
    every_s: float,
    timeout_s: float,
) -> int:
    """Show the members and the progress of a cluster."""
    while True:
        processes: list[dict[str, Any]] = []
        address = coordinator
        if address is None:
            address, processes = _local(StateFolder(state))
        _check(address)
        cluster = fetch(address, sections[SecurityConfig], timeout_s)
        if as_json:
            shown = {"coordinator": address, **dataclasses.asdict(cluster), "processes": processes}
            # One line each when it goes on, for programs that read lines.
            click.echo(json.dumps(shown, indent=None if watch else 2))
        else:
            if watch:
                click.clear()
            _show(address, cluster, processes)
        if not watch:
            return 0
        time.sleep(every_s)


def _local(folder: StateFolder) -> tuple[str, list[dict[str, Any]]]:
    record = folder.read()
    if record is None or not folder.in_use() or record.get("address") is None:
        raise NoCluster(folder.path)
    return record["address"], record["children"]


def _check(address: str) -> None:
    try:
        reachable(address)
    except ValueError as error:
        raise ConfigError([Problem("--coordinator", str(error), "flag")]) from None


def _show(address: str, cluster: ClusterStatus, processes: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    if not console.is_terminal:
        # A pipe has no width; nothing should be cut off there.
        console = Console(highlight=False, width=200)
    console.print(
        f"coordinator {address}, version {cluster.version}, up {cluster.uptime_s:.0f} s, "
        f"generation {cluster.generation}, tables: {', '.join(cluster.tables) or 'none'}"
    )
    if cluster.total_steps:
        loss = "" if cluster.loss is None else f", loss {cluster.loss:.4f}"
        console.print(
            f"step {cluster.step} of {cluster.total_steps}{loss}, "
            f"{cluster.samples_per_s:,.0f} samples/s"
        )
        if cluster.lag_steps:
            console.print(f"the slowest trainer is {cluster.lag_steps} steps behind")
    if cluster.checkpoint is not None and not cluster.checkpoint["error"]:
        console.print(
            f"newest checkpoint: step {cluster.checkpoint['step']}, "
            f"{cluster.checkpoint['age_s']:.0f} s ago, {cluster.checkpoint['path']}"
        )
    for warning in cluster.warnings:
        console.print(f"warning: {warning}", style="yellow")
    by_name = {process["name"]: process for process in processes}
    table = Table("name", "role", "address", "step", "last seen", "pid", "restarts")
    for member in cluster.members:
        process = by_name.get(member.name, {})
        table.add_row(
            member.name,
            member.role,
            member.address,
            "" if member.step is None else str(member.step),
            f"{member.silence_s:.1f} s ago",
            str(process.get("pid") or ""),
            str(process.get("restarts", "")),
        )
    console.print(table)

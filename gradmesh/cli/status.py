"""`gradmesh status`."""

import dataclasses
import json
import time
from collections.abc import Sequence
from pathlib import Path

import click

from gradmesh.cli.launcher_option import with_launcher
from gradmesh.cli.mesh_option import checked
from gradmesh.cli.options import configured
from gradmesh.launch.launcher import Launcher, ProcessView
from gradmesh.sdk.cluster.status import ClusterStatus, fetch
from gradmesh.sdk.process.config import Sections
from gradmesh.sdk.process.network import SecurityConfig, listening
from gradmesh.sdk.process.setting import ConfigError, Problem


@click.command()
@click.option("--coordinator", metavar="ADDRESS", help="Ask this coordinator, wherever it runs.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--watch", is_flag=True, help="Show it again and again until interrupted.")
@click.option(
    "--every-s", type=click.FloatRange(min=0.1), default=1.0, help="With --watch.  [default: 1]"
)
@click.option(
    "--serve",
    metavar="ADDRESS",
    help="Show it as a page at this address, and as /status.json, until interrupted.",
)
@click.option("--timeout-s", type=click.FloatRange(min=0.1), default=5.0, help="[default: 5]")
@with_launcher
@configured(SecurityConfig)
def status(
    sections: Sections,
    config: Path | None,
    launcher: Launcher,
    coordinator: str | None,
    as_json: bool,
    watch: bool,
    every_s: float,
    serve: str | None,
    timeout_s: float,
) -> int:
    """Show the members and the progress of a cluster."""
    if serve is not None and (watch or as_json):
        raise click.UsageError("--serve goes with neither --watch nor --json")
    while True:
        processes: Sequence[ProcessView] = ()
        if coordinator is None:
            view = launcher.status()
            address, processes = view.address, view.processes
        else:
            address = checked(coordinator)
        if serve is not None:
            return _serve(serve, address, sections[SecurityConfig], timeout_s)
        cluster = fetch(address, sections[SecurityConfig], timeout_s)
        if as_json:
            shown = {
                "coordinator": address,
                **dataclasses.asdict(cluster),
                "processes": [dataclasses.asdict(process) for process in processes],
            }
            # One line each when it goes on, for programs that read lines.
            click.echo(json.dumps(shown, indent=None if watch else 2))
        else:
            if watch:
                click.clear()
            _show(address, cluster, processes)
        if not watch:
            return 0
        time.sleep(every_s)


def _serve(listen: str, address: str, security: SecurityConfig, timeout_s: float) -> int:
    from gradmesh.cli.status_page import StatusPage

    try:
        listening(listen)
    except ValueError as error:
        raise ConfigError([Problem("--serve", str(error), "flag")]) from None
    page = StatusPage(listen, lambda: fetch(address, security, timeout_s))
    click.echo(f"status of {address} at http://{page.address}/", err=True)
    page.serve()
    return 0


def _show(address: str, cluster: ClusterStatus, processes: Sequence[ProcessView]) -> None:
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
    by_name = {process.name: process for process in processes}
    table = Table("name", "role", "address", "step", "contexts", "last seen", "runs in", "restarts")
    for member in cluster.members:
        process = by_name.get(member.name)
        table.add_row(
            member.name,
            member.role,
            member.address,
            "" if member.step is None else str(member.step),
            str(member.open_contexts or ""),
            f"{member.silence_s:.1f} s ago",
            "" if process is None else process.place or f"process {process.pid}",
            "" if process is None else str(process.restarts),
        )
    console.print(table)

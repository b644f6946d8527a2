"""`gradmesh status` and `gradmesh contexts`."""

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path

import click

from gradmesh.cli.cluster_options import (
    address_of,
    checked,
    coordinator_option,
    with_launcher,
)
from gradmesh.cli.display import output_console, print_table
from gradmesh.cli.options import configured, json_option
from gradmesh.cli.output import echo, echo_json
from gradmesh.launch.launcher import Launcher, ProcessView
from gradmesh.sdk.cluster.status import ClusterStatus, WorkerContexts, fetch
from gradmesh.sdk.process.config import Sections
from gradmesh.sdk.process.network import SecurityConfig, listening
from gradmesh.sdk.process.setting import ConfigError, Problem


@click.command()
@coordinator_option
@json_option
@click.option("--watch", is_flag=True, help="Refresh until interrupted.")
@click.option(
    "--every-s",
    type=click.FloatRange(min=0.1),
    default=1.0,
    help="Seconds between refreshes of --watch.  [default: 1]",
)
@click.option(
    "--serve",
    metavar="ADDRESS",
    help="Serve the status as a page at this address, and as /status.json, until interrupted.",
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
        raise click.UsageError("--serve excludes --watch and --json; leave them out")
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
            # One line per refresh, for programs that read lines.
            echo_json(shown, indent=None if watch else 2)
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
    echo(f"status of {address} at http://{page.address}/", err=True)
    page.serve()
    return 0


def _show(address: str, cluster: ClusterStatus, processes: Sequence[ProcessView]) -> None:
    console = output_console()
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
    rows = []
    for member in cluster.members:
        process = by_name.get(member.name)
        row = (
            member.name,
            member.role,
            member.address,
            "" if member.step is None else str(member.step),
            str(member.open_contexts or ""),
            f"{member.silence_s:.1f} s ago",
            "" if process is None else process.place or f"process {process.pid}",
            "" if process is None else str(process.restarts),
        )
        rows.append(row)
    columns = ("name", "role", "address", "step", "contexts", "last seen", "runs in", "restarts")
    print_table(columns, rows)


@click.command()
@coordinator_option
@json_option
@click.option("--timeout-s", type=click.FloatRange(min=0.1), default=5.0, help="[default: 5]")
@with_launcher
@configured(SecurityConfig)
def contexts(
    sections: Sections,
    config: Path | None,
    launcher: Launcher,
    coordinator: str | None,
    as_json: bool,
    timeout_s: float,
) -> int:
    """List the open contexts of distributed autograd by the worker that opened them.

    Members report them with their heartbeats, at most a second ago. Contexts of a lost worker are
    released by their holders with the next heartbeat.
    """
    address = address_of(coordinator, launcher)
    found = fetch(address, sections[SecurityConfig], timeout_s).contexts
    if as_json:
        echo_json([dataclasses.asdict(worker) for worker in found])
    elif found:
        _show_contexts(found)
    else:
        echo("no contexts are open")
    return 0


def _show_contexts(found: tuple[WorkerContexts, ...]) -> None:
    rows = [
        (
            worker.worker,
            str(worker.incarnation),
            "alive" if worker.alive else "gone",
            str(sum(worker.open.values())),
            ", ".join(f"{owner} {count}" for owner, count in worker.open.items()),
        )
        for worker in found
    ]
    print_table(("worker", "incarnation", "state", "open", "on"), rows)

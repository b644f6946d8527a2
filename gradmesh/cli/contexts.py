"""`gradmesh contexts`."""

import dataclasses
import json
from pathlib import Path

import click

from gradmesh.cli.launcher_option import with_launcher
from gradmesh.cli.mesh_option import checked
from gradmesh.cli.options import configured
from gradmesh.launch.launcher import Launcher
from gradmesh.sdk.cluster.status import WorkerContexts, fetch
from gradmesh.sdk.process.config import Sections
from gradmesh.sdk.process.network import SecurityConfig


@click.command()
@click.option("--coordinator", metavar="ADDRESS", help="Ask this coordinator, wherever it runs.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
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

    Members tell of them with their signs of life, at most a second ago. Contexts of a worker that
    is gone are released by whoever holds them with the next one.
    """
    address = checked(coordinator) if coordinator else launcher.status().address
    found = fetch(address, sections[SecurityConfig], timeout_s).contexts
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(worker) for worker in found], indent=2))
    elif found:
        _show(found)
    else:
        click.echo("no contexts are open")
    return 0


def _show(found: tuple[WorkerContexts, ...]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    if not console.is_terminal:
        # A pipe has no width; nothing should be cut off there.
        console = Console(highlight=False, width=200)
    table = Table("worker", "incarnation", "state", "open", "on")
    for worker in found:
        table.add_row(
            worker.worker,
            str(worker.incarnation),
            "alive" if worker.alive else "gone",
            str(sum(worker.open.values())),
            ", ".join(f"{owner} {count}" for owner, count in worker.open.items()),
        )
    console.print(table)

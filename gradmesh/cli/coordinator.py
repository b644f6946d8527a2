"""`gradmesh coordinator`."""

from pathlib import Path

import click

from gradmesh.cli.options import configured, process_config
from gradmesh.launch.sections import role_sections
from gradmesh.sdk.process.config import Sections
from gradmesh.services.config import CoordinatorConfig


@click.command()
@configured(*role_sections("coordinator"))
def coordinator(sections: Sections, config: Path | None) -> int:
    """Run a coordinator in the foreground: members, ranks, tables, progress."""
    from gradmesh.services.coordinator.main import run

    return run(sections[CoordinatorConfig], process_config(sections))

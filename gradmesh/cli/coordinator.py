"""`gradmesh coordinator`."""

from pathlib import Path

import click

from gradmesh.cli.options import PROCESS_SECTIONS, configured, process_config
from gradmesh.sdk.process.config import Sections
from gradmesh.services.coordinator.config import CoordinatorConfig


@click.command()
@configured(CoordinatorConfig, *PROCESS_SECTIONS)
def coordinator(sections: Sections, config: Path | None) -> int:
    """Run a coordinator in the foreground: members, ranks, tables, progress."""
    from gradmesh.services.coordinator.main import run

    return run(sections[CoordinatorConfig], process_config(sections))

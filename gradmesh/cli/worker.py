"""`gradmesh worker`."""

from pathlib import Path

import click

from gradmesh.cli.options import configured, process_config
from gradmesh.launch.sections import role_sections
from gradmesh.sdk.node.config import RpcConfig
from gradmesh.sdk.process.config import Sections
from gradmesh.services.config import WorkerConfig


@click.command()
@configured(*role_sections("worker"))
def worker(sections: Sections, config: Path | None) -> int:
    """Run a worker in the foreground: functions of your own modules, called by others."""
    from gradmesh.services.worker import run

    return run(sections[WorkerConfig], sections[RpcConfig], process_config(sections))

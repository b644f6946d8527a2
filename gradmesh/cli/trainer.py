"""`gradmesh trainer`."""

from pathlib import Path

import click

from gradmesh.cli.options import configured, process_config
from gradmesh.launch.sections import role_sections
from gradmesh.sdk.node.config import RpcConfig
from gradmesh.sdk.process.config import Sections
from gradmesh.trainer.config import TrainerConfig
from gradmesh.trainer.job.spec import job_spec_of


@click.command()
@configured(*role_sections("trainer"))
def trainer(sections: Sections, config: Path | None) -> int:
    """Run a trainer in the foreground until its job is done."""
    from gradmesh.trainer.main import run

    return run(
        sections[TrainerConfig],
        job_spec_of(sections),
        process_config(sections),
        sections[RpcConfig],
    )

"""`gradmesh trainer`."""

from pathlib import Path

import click

from gradmesh.cli.options import PROCESS_SECTIONS, configured, process_config
from gradmesh.sdk.process.config import Sections
from gradmesh.sdk.rpc.config import RpcConfig
from gradmesh.trainer.config import TrainerConfig
from gradmesh.trainer.job.assignment import JOB_SECTIONS, assignment_of


@click.command()
@configured(TrainerConfig, *JOB_SECTIONS, RpcConfig, *PROCESS_SECTIONS)
def trainer(sections: Sections, config: Path | None) -> int:
    """Run a trainer in the foreground until its job is done."""
    from gradmesh.trainer.main import run

    return run(
        sections[TrainerConfig],
        assignment_of(sections),
        process_config(sections),
        sections[RpcConfig],
    )

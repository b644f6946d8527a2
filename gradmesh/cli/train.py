"""`gradmesh train`."""

import time
from pathlib import Path

import click

from gradmesh.cli.cluster import for_children, listen_address, not_flags
from gradmesh.cli.follow import follow
from gradmesh.cli.options import configured
from gradmesh.cli.progress import Figures
from gradmesh.launch.local import LocalCluster
from gradmesh.launch.policy import RestartPolicy
from gradmesh.launch.sections import CLUSTER_SECTIONS
from gradmesh.launch.training import prepare, result_of
from gradmesh.sdk.process.config import Sections
from gradmesh.services.coordinator.config import CoordinatorConfig
from gradmesh.trainer.job.assignment import assignment_of


@click.command()
@click.option("--keep-logs", is_flag=True, help="Keep the processes' logs in the output folder.")
@configured(*CLUSTER_SECTIONS, without=not_flags(), file="JOB.toml")
def train(sections: Sections, config: Path, keep_logs: bool) -> int:
    """Train a job from a file on a local cluster, from start to finish.

    The file has a table [data] that says what to read, [model] what to train, [job] how, and
    [coordinator] how many trainers and parameter_servers. Every setting is a flag, too.

    Metrics, the report (report.json, report.html) and the trained model go to the folder
    job.output, which is the file's name without its ending if not set.
    """
    begun = time.monotonic()
    assignment = assignment_of(sections)
    prepare(assignment)
    output = (assignment.job.output or Path(config.stem)).absolute()
    counts = sections[CoordinatorConfig]
    cluster = LocalCluster(
        parameter_servers=counts.parameter_servers,
        trainers=counts.trainers,
        config=config,
        state=output / "cluster" if keep_logs else None,
        listen=listen_address(sections),
        settings={**for_children(sections), "job.output": output},
        policy=RestartPolicy(most_in_a_row=2),
    )
    size = f"{counts.parameter_servers} parameter servers, {counts.trainers} trainers"
    status, code = follow(cluster, f"gradmesh train {config.name}: {size}")
    if status is None:
        return code
    seconds = time.monotonic() - begun
    Figures({**result_of(status), "seconds": seconds}).show()
    click.echo(f"report, metrics and model are in {output}")
    return 0

"""`gradmesh train`."""

import time
from pathlib import Path

import click

from gradmesh.cli.cluster import for_children, given_by_flag, listen_address, not_flags
from gradmesh.cli.cluster_options import on_option, with_kubernetes
from gradmesh.cli.display import ResultTable
from gradmesh.cli.follow import follow, train_on_kubernetes
from gradmesh.cli.options import configured
from gradmesh.cli.output import echo
from gradmesh.launch.kubernetes.api import KubernetesOptions
from gradmesh.launch.launcher import LauncherName
from gradmesh.launch.local import LocalCluster
from gradmesh.launch.sections import cluster_sections
from gradmesh.launch.supervisor import RestartPolicy
from gradmesh.launch.training import prepare, result_of
from gradmesh.sdk.process.config import Sections
from gradmesh.services.config import CoordinatorConfig
from gradmesh.trainer.job.spec import job_spec_of


@click.command()
@click.option("--keep-logs", is_flag=True, help="Keep the processes' logs in the output folder.")
@click.option(
    "--name",
    "cluster_name",
    help="Name of the cluster if it is not local.  [default: the file's]",
)
@on_option
@with_kubernetes
@configured(*cluster_sections(), without=not_flags(), file="JOB.toml")
def train(
    sections: Sections,
    config: Path,
    keep_logs: bool,
    on: LauncherName,
    cluster_name: str | None,
    kubernetes: KubernetesOptions,
) -> int:
    r"""Train a job from a file, from start to finish, on a cluster of its own.

    The file configures the samples in [data], the model in [model], the training in [job], and the
    numbers of trainers and parameter_servers in [coordinator]. Every setting is a flag, too, named
    after its key: job.batch_size is --batch-size, data.train --data-train, model.name --model-name.

    \b
        [coordinator]
        trainers = 2
        parameter_servers = 2
        [data]
        format = "criteo"
        train = ["train.txt"]
        holdout = 0.1
        rows = [1000000]
        [model]
        name = "dlrm"
        [job]
        epochs = 1
        eval_every = 1000

    Metrics, the report (report.json, report.html) and the trained model go to the folder
    job.output, by default the file's name without its suffix. With --on kubernetes the file, your
    modules and small data beside it are sent in a ConfigMap; the model is not copied back.
    """
    if on not in ("local", "kubernetes"):
        raise click.BadParameter(
            f"a job on {on} is `gradmesh up --on {on} --exit-when-done --config JOB.toml`; "
            "see docs/deploy.md",
            param_hint="--on",
        )
    begun = time.monotonic()
    spec = job_spec_of(sections)
    output = (spec.job.output or Path(config.stem)).absolute()
    counts = sections[CoordinatorConfig]
    title = (
        f"gradmesh train {config.name}: {counts.parameter_servers} parameter servers, "
        f"{counts.trainers} trainers"
    )
    if on == "kubernetes":
        figures, code = train_on_kubernetes(
            sections, config, output, title, cluster_name, kubernetes, given_by_flag(sections)
        )
        kept = "report and metrics"
    else:
        prepare(spec)
        cluster = LocalCluster(
            parameter_servers=counts.parameter_servers,
            trainers=counts.trainers,
            config=config,
            state=output / "cluster" if keep_logs else None,
            listen=listen_address(sections),
            settings={**for_children(sections), "job.output": output},
            policy=RestartPolicy(most_in_a_row=2),
        )
        status, code = follow(cluster, title)
        figures, kept = None if status is None else result_of(status), "report, metrics and model"
    if figures is None:
        return code
    ResultTable({**figures, "seconds": time.monotonic() - begun}).show()
    echo(f"{kept} are in {output}")
    return 0

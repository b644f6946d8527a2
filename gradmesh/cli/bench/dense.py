"""`gradmesh bench dense`."""

from pathlib import Path

import click

# Written out, so that --help does not import the engine; a test compares.
WORKLOADS = ("mlp-b256", "mlp-b2048", "mlp-b2048-mkl", "embedding-bag", "small-mlp", "resnet50")


@click.command()
@click.option("--against", type=click.Choice(["torch"]), help="Measure a peer in the same run.")
@click.option(
    "--workload",
    "workloads",
    type=click.Choice(WORKLOADS),
    multiple=True,
    help="Only this one; may be given several times.  [default: all]",
)
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the rows here.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.01),
    default=5.0,
    help="How long to measure each workload.  [default: 5]",
)
@click.option(
    "--threads", type=click.IntRange(min=1), default=1, help="On both sides.  [default: 1]"
)
def dense(
    against: str | None,
    workloads: tuple[str, ...],
    file: Path | None,
    seconds: float,
    threads: int,
) -> int:
    """Train dense layers and an embedding bag in one process, forward, backward and step.

    The row of MKL is left out where gradmesh[mkl] is not installed.
    """
    # Imported here, so that --help stays quick.
    from gradmesh.benchmarks import dense as benchmark
    from gradmesh.benchmarks.dense_torch import TorchMissing
    from gradmesh.benchmarks.report import HEADING, show_line, write_json

    click.echo(HEADING)
    try:
        rows = benchmark.run(
            against,
            workloads=workloads or WORKLOADS,
            seconds=seconds,
            threads=threads,
            on_row=lambda row: click.echo(show_line(row)),
        )
    except TorchMissing as error:
        raise click.UsageError(str(error)) from None
    if file is not None:
        write_json(rows, file)
    return 0

"""`gradmesh bench recovery`."""

from pathlib import Path

import click

# Written out, so that --help does not import the engine; a test compares.
WORKLOADS = ("log", "snapshot")


@click.command()
@click.option(
    "--workload",
    "workloads",
    type=click.Choice(WORKLOADS),
    multiple=True,
    help="Only this one; may be given several times.  [default: all]",
)
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the rows here.")
@click.option(
    "--megabytes",
    type=click.IntRange(min=1),
    default=512,
    help="How much is on the disk when the server is killed.  [default: 512]",
)
def recovery(workloads: tuple[str, ...], file: Path | None, megabytes: int) -> int:
    """Seconds for each gigabyte that a killed parameter server takes to have its rows again."""
    # Imported here, so that --help stays quick.
    from gradmesh.benchmarks import recovery as benchmark
    from gradmesh.benchmarks.report import write_json

    click.echo(f"{'workload':<20}{'seconds a GB':>14}")
    rows = benchmark.run(
        workloads or WORKLOADS,
        megabytes,
        on_row=lambda row: click.echo(f"{row.workload:<20}{row.ours:>14.2f}"),
    )
    if file is not None:
        write_json(rows, file)
    return 0

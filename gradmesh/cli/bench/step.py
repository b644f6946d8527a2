"""`gradmesh bench step`."""

from pathlib import Path

import click

# Written out, so that --help does not import the engine; a test compares.
WORKLOADS = ("small", "dlrm")


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
    "--seconds",
    type=click.FloatRange(min=0.01),
    default=10.0,
    help="About how long one workload takes on one side.  [default: 10]",
)
def step(workloads: tuple[str, ...], file: Path | None, seconds: float) -> int:
    """Steps of a synchronous run, compared with steps that nobody coordinates.

    Two parameter servers without a log, one trainer. The cost is what the coordination adds.
    """
    # Imported here, so that --help stays quick.
    from gradmesh.benchmarks import step as benchmark
    from gradmesh.benchmarks.report import HEADING, show_line, write_json

    click.echo(f"{HEADING}{'cost':>9}")
    rows = benchmark.run(
        benchmark.COORDINATION,
        workloads or WORKLOADS,
        seconds,
        on_row=lambda row: click.echo(f"{show_line(row)}{benchmark.cost(row):>9.1%}"),
    )
    if file is not None:
        write_json(rows, file)
    return 0

"""`gradmesh bench checkpoint`."""

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
    "--every-s",
    type=click.FloatRange(min=0.01),
    default=5.0,
    help="Seconds of training between two checkpoints.  [default: 5]",
)
@click.option("--turns", type=click.IntRange(min=1), default=5, help="[default: 5]")
def checkpoint(workloads: tuple[str, ...], file: Path | None, every_s: float, turns: int) -> int:
    """Training steps with checkpoints in the background, compared with none.

    Two parameter servers, one trainer. The first row is all that they add to the mean step, the
    second what the training itself waited for them.
    """
    # Imported here, so that --help stays quick.
    from gradmesh.benchmarks import checkpoint as benchmark
    from gradmesh.benchmarks.report import HEADING, show_line, write_json

    click.echo(f"{HEADING}{'cost':>9}")
    rows = benchmark.run(
        workloads or WORKLOADS,
        every_s,
        turns,
        on_row=lambda row: click.echo(f"{show_line(row)}{benchmark.share(row):>9.1%}"),
    )
    if file is not None:
        write_json(rows, file)
    return 0

"""`gradmesh bench scale`."""

import json
from pathlib import Path

import click


@click.command()
@click.option(
    "--rows", type=click.IntRange(10), default=100_000, help="Of a table.  [default: 100000]"
)
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the rows here.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.1),
    default=5.0,
    help="About how long one size takes.  [default: 5]",
)
def scale(rows: int, file: Path | None, seconds: float) -> int:
    """Grow the hybrid step: 1, 2 and 4 trainers and servers, batches, tables.

    The last columns are the share of distinct rows among the ids of a batch, what a trainer moves
    in a step, how many times the least possible that is, the most memory that a trainer had, and
    the size of all tables. docs/scaling.md reads the figures.
    """
    # Imported here, so that --help stays quick.
    from gradmesh.benchmarks import scale as benchmark

    click.echo(
        f"{'size':<14}{'ms, p50':>9}{'samples/s':>12}{'distinct':>10}{'KiB':>9}{'of least':>10}"
        f"{'MiB':>7}{'tables':>8}"
    )
    found = benchmark.run(
        benchmark.sizes(rows),
        seconds,
        lambda row: click.echo(
            f"{row.workload:<14}{row.seconds * 1e3:>9.2f}{row.samples_per_s:>12,.0f}"
            f"{row.distinct:>10.3f}{row.bytes / 1024:>9,.0f}{row.bytes / row.least_bytes:>10.2f}"
            f"{row.memory / 2**20:>7,.0f}{row.table_memory / 2**20:>8,.0f}"
        ),
    )
    if file is not None:
        file.write_text(
            json.dumps([row.as_dict() for row in found], indent=1) + "\n", encoding="utf-8"
        )
    return 0

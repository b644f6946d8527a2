"""`gradmesh bench prefetch`."""

import json
from pathlib import Path

import click

from gradmesh.cli.bench.lookup import chosen


@click.command()
@click.option(
    "--lane",
    "lanes",
    default="shm,tcp,stream",
    metavar="LANE,...",
    help="Lanes to measure: shm, tcp, stream.  [default: all]",
)
@click.option("--batch", type=click.IntRange(1), default=1024, help="Samples.  [default: 1024]")
@click.option(
    "--rows",
    type=click.IntRange(1),
    default=100_000,
    help="Rows of each of the 26 tables.  [default: 100000]",
)
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the rows here.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.1),
    default=5.0,
    help="About how long one lane takes on one side.  [default: 5]",
)
def prefetch(lanes: str, batch: int, rows: int, file: Path | None, seconds: float) -> int:
    """Hide lookups behind the dense layers: one trainer, one server, with and without prefetching.

    "Hidden" is the share of the time for a batch's rows that is gone when they are asked for one
    step ahead. What cannot be hidden are the rows that the step in between has changed, and laying
    rows out for the layers.
    """
    # Imported here, so that --help stays quick.
    from gradmesh.benchmarks import prefetch as benchmark

    wanted = chosen("lane", lanes, benchmark.LANES)
    click.echo(
        f"{'workload':<16}{'rows, ms':>10}{'ahead, ms':>11}{'hidden':>8}{'step, ms':>10}"
        f"{'ahead, ms':>11}"
    )
    found = benchmark.run(
        wanted,
        batch,
        rows,
        seconds,
        lambda row: click.echo(
            f"{row.workload:<16}{row.peer * 1e3:>10.2f}{row.ours * 1e3:>11.2f}{row.hidden:>8.0%}"
            f"{row.peer_parts['total'] * 1e3:>10.1f}{row.ours_parts['total'] * 1e3:>11.1f}"
        ),
    )
    if file is not None:
        content = json.dumps([row.as_dict() for row in found], indent=1)
        file.write_text(content + "\n", encoding="utf-8")
    return 0

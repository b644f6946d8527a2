"""`gradmesh bench lookup`."""

import json
from pathlib import Path

import click


@click.command()
@click.option(
    "--against", type=click.Choice(["torch"]), help="Measure this peer in turns with ours."
)
@click.option(
    "--lane",
    "lanes",
    default="shm,tcp,stream",
    metavar="LANE,...",
    help="Lanes to measure: shm, tcp, stream.  [default: all]",
)
@click.option(
    "--workload",
    "names",
    metavar="NAME,...",
    help="Measure only these, such as pull-1,batch26.  [default: all]",
)
@click.option(
    "--batch-rows",
    type=click.IntRange(min=1),
    default=100_000,
    help="Rows of each of the 26 tables of batch26.  [default: 100k]",
)
@click.option(
    "--pairs",
    type=click.IntRange(min=2),
    help="Measure so many clients and servers at once against one of each, instead of a peer.",
)
@click.option(
    "--durability",
    type=click.Choice(["off", "os", "fsync"]),
    default="off",
    help="What our server writes of pushes; the peer writes nothing.  [default: off]",
)
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the rows here.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.01),
    default=2.0,
    help="About how long one workload takes on one side.  [default: 2]",
)
def lookup(
    against: str | None,
    lanes: str,
    names: str | None,
    batch_rows: int,
    pairs: int | None,
    durability: str,
    file: Path | None,
    seconds: float,
) -> int:
    """Pull and push rows of a table of 1M x 64, one client and one server.

    Rows are named like pull-64-shm and push-65536-stream; batch26 looks up 2048 x 26 ids of 26
    tables. The ratio is the peer's median over ours: above 1 we are faster.
    """
    # Imported here, so that --help stays quick.
    from gradmesh.benchmarks import lookup as benchmark
    from gradmesh.benchmarks.report import HEADING, show_line, write_json

    known = {load.name: load for load in benchmark.loads()}
    wanted = chosen("lane", lanes, benchmark.LANES)
    if pairs is not None:
        return _measure_pairs(pairs, wanted, durability, file, seconds)
    only = [known[name] for name in chosen("workload", names or ",".join(known), tuple(known))]
    click.echo(HEADING)
    rows = benchmark.run(
        wanted,
        against is not None,
        seconds,
        on_row=lambda row: click.echo(show_line(row)),
        only=only,
        batch_rows=batch_rows,
        durability=durability,
    )
    if file is not None:
        write_json(rows, file)
    return 0


def _measure_pairs(
    pairs: int, lanes: list[str], durability: str, file: Path | None, seconds: float
) -> int:
    from gradmesh.benchmarks import pairs as benchmark

    heading = f"{'workload':<24}{'rows/s, one pair':>18}{'rows/s, all':>14}"
    click.echo(f"{heading}{'ratio':>8}{'cores':>7}")
    rows = [
        row
        for lane in lanes
        for row in benchmark.run(
            pairs,
            lane,
            seconds,
            durability=durability,
            on_row=lambda row: click.echo(
                f"{row.workload:<24}{1 / row.peer:>18,.0f}{row.rows_s:>14,.0f}{row.ratio:>8.2f}"
                f"{row.cores:>7}"
            ),
        )
    ]
    if file is not None:
        file.write_text(json.dumps([row.as_dict() for row in rows], indent=1) + "\n", "utf-8")
    return 0


def chosen(what: str, text: str, known: tuple[str, ...]) -> list[str]:
    """Return the names in a list with commas."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise click.BadParameter(f"no {what} is called {name!r}; use {', '.join(known)}")
    return names

"""`gradmesh bench rpc`."""

from pathlib import Path

import click

from gradmesh.cli.bench.lookup import chosen as named


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
    help="Measure only these, such as null,tensor-1k.  [default: all]",
)
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the rows here.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.01),
    default=2.0,
    help="About how long one workload takes on one side.  [default: 2]",
)
def rpc(
    against: str | None, lanes: str, names: str | None, file: Path | None, seconds: float
) -> int:
    """Call registered functions of another process.

    null takes and returns nothing, tensor-1m echoes 4 MB, async-100 are 100 calls at once, remote
    makes a reference and fetches its value, later answers with a future. The ratio is the peer's
    median over ours: above 1 we are faster.
    """
    # Imported here, so that --help stays quick.
    from gradmesh.benchmarks import rpc as benchmark
    from gradmesh.benchmarks.report import HEADING, show_line, write_json

    known = {load.name: load for load in benchmark.loads()}
    chosen = named("lane", lanes, benchmark.LANES)
    only = [known[name] for name in named("workload", names or ",".join(known), tuple(known))]
    click.echo(HEADING)
    rows = benchmark.run(
        chosen,
        against is not None,
        seconds,
        on_row=lambda row: click.echo(show_line(row)),
        only=only,
    )
    if file is not None:
        write_json(rows, file)
    return 0

"""`gradmesh bench autograd`."""

from pathlib import Path

import click


@click.command()
@click.option(
    "--against", type=click.Choice(["torch"]), help="Measure this peer in turns with ours."
)
@click.option(
    "--workload",
    "names",
    metavar="NAME,...",
    help="Measure only these, such as chain-1,fanout-4.  [default: all]",
)
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the rows here.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.01),
    default=5.0,
    help="About how long one workload takes on one side.  [default: 5]",
)
def autograd(against: str | None, names: str | None, file: Path | None, seconds: float) -> int:
    """Run contexts with a forward and a backward over up to four other workers.

    chain-N goes along N workers and back, fanout-4 calls four at once, contexts-1000 is a thousand
    small contexts, optimizer-4 is a step of a distributed optimizer over four owners. Each in smart
    mode on lanes, in fast mode (-fast; async steps) and on gRPC streams (-stream). The ratio is the
    peer's median over ours: above 1 we are faster.
    """
    # Imported here, so that --help stays quick.
    from gradmesh.benchmarks import autograd as benchmark
    from gradmesh.benchmarks.report import HEADING, show_line, write_json

    known = {load.name: load for load in benchmark.LOADS}
    chosen = [name.strip() for name in (names or ",".join(known)).split(",")]
    for name in chosen:
        if name not in known:
            raise click.BadParameter(f"no workload is called {name!r}; use {', '.join(known)}")
    click.echo(HEADING)
    rows = benchmark.run(
        against is not None,
        seconds,
        on_row=lambda row: click.echo(show_line(row)),
        only=[known[name] for name in chosen],
    )
    if file is not None:
        write_json(rows, file)
    return 0

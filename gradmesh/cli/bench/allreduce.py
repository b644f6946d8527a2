"""`gradmesh bench allreduce`."""

from pathlib import Path

import click


@click.command()
@click.option(
    "--against", type=click.Choice(["torch"]), help="Measure this peer in turns with ours."
)
@click.option(
    "--backend",
    "backends",
    default="shm,tcp",
    metavar="NAME,...",
    help="Backends to measure: shm, tcp.  [default: all]",
)
@click.option(
    "--world",
    "worlds",
    default="2,4",
    metavar="N,...",
    help="Numbers of processes.  [default: 2,4]",
)
@click.option(
    "--size",
    "sizes",
    default="4KiB,1MiB,25MiB",
    metavar="SIZE,...",
    help="Sizes of the array: 4KiB, 1MiB, 25MiB.  [default: all]",
)
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the rows here.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.01),
    default=2.0,
    help="About how long one row takes on one side.  [default: 2]",
)
def allreduce(
    against: str | None, backends: str, worlds: str, sizes: str, file: Path | None, seconds: float
) -> int:
    """Sum float32 arrays over processes of this machine.

    Rows are named like shm-4KiB-w2 and tcp-25MiB-w4. The ratio is the peer's median over ours:
    above 1 we are faster. The peer is torch.distributed with gloo.
    """
    # Imported here, so that --help stays quick.
    from gradmesh.benchmarks import allreduce as benchmark
    from gradmesh.benchmarks.report import HEADING, show_line, write_json

    click.echo(HEADING)
    rows = benchmark.run(
        _chosen("backend", backends, benchmark.BACKENDS),
        [_world(text) for text in worlds.split(",")],
        _chosen("size", sizes, tuple(benchmark.SIZES)),
        against is not None,
        seconds,
        on_row=lambda row: click.echo(show_line(row)),
    )
    if file is not None:
        write_json(rows, file)
    return 0


def _chosen(what: str, text: str, known: tuple[str, ...]) -> list[str]:
    """Return the names in a list with commas."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise click.BadParameter(f"no {what} is called {name!r}; use {', '.join(known)}")
    return names


def _world(text: str) -> int:
    if not text.strip().isdecimal() or not 1 <= int(text) <= 64:
        raise click.BadParameter(f"{text!r} is no number of processes between 1 and 64")
    return int(text)

"""`gradmesh bench hybrid`."""

from pathlib import Path
from typing import Any

import click

# Written out, so that --help does not import numpy; a test compares.
WORKLOADS = ("seed", "realistic-b256", "realistic-b2048", "embedding-bound", "seed-t8-s8")


@click.command()
@click.option("--against", type=click.Choice(["torch"]), help="Measure this peer in turns.")
@click.option(
    "--workload",
    "names",
    type=click.Choice(WORKLOADS),
    multiple=True,
    help="Only this one; may be given several times.  [default: all]",
)
@click.option("--trainers", type=click.IntRange(1, 64), help="Run the seed benchmark with so many.")
@click.option("--parameter-servers", type=click.IntRange(1, 64), help="As --trainers.")
@click.option("--embeddings", type=click.IntRange(1), help="Rows of a table, as --trainers.")
@click.option("--dim", type=click.IntRange(1, 4096), help="Elements of a row, as --trainers.")
@click.option(
    "--epochs", type=click.IntRange(1), default=100, help="Of the seed benchmark.  [default: 100]"
)
@click.option(
    "--warmup-cycles", type=click.IntRange(0), default=5, help="Epochs before.  [default: 5]"
)
@click.option(
    "--rows",
    type=click.IntRange(1),
    default=100_000,
    help="Rows of each of the 26 realistic tables.  [default: 100000]",
)
@click.option(
    "--prefetch", type=click.IntRange(0, 16), default=0, help="Batches ours fetches ahead."
)
@click.option(
    "--lane", type=click.Choice(["auto", "shm", "tcp", "stream"]), default="auto", help="Of ours."
)
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the rows here.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.1),
    default=10.0,
    help="About how long one workload takes on one side.  [default: 10]",
)
def hybrid(
    against: str | None,
    names: tuple[str, ...],
    trainers: int | None,
    parameter_servers: int | None,
    embeddings: int | None,
    dim: int | None,
    epochs: int,
    warmup_cycles: int,
    rows: int,
    prefetch: int,
    lane: str,
    file: Path | None,
    seconds: float,
) -> int:
    """Train with tables on servers and dense layers under DDP, split into the parts of a step.

    With --trainers, --parameter-servers, --embeddings or --dim it is the benchmark of torch's
    examples: epochs of 10 batches of about 7 bags, one table a server, and its table of percentiles
    a trainer; samples/sec are true ones. Otherwise rows of 2 trainers and 1 server are measured,
    and one of 8 and 8, in steps. With --against the peer takes turns: torch RPC, DDP over gloo,
    distributed autograd and optimizer. A ratio above 1 means that we are faster.
    """
    # Imported here, so that --help stays quick.
    from dataclasses import replace

    from gradmesh.benchmarks import hybrid as benchmark
    from gradmesh.benchmarks import hybrid_epochs
    from gradmesh.benchmarks.hybrid_shape import seed_shape, shapes

    if any(value is not None for value in (trainers, parameter_servers, embeddings, dim)):
        if names:
            raise click.UsageError("--workload has sizes of its own; leave the others out")
        sizes = (trainers or 8, parameter_servers or 8, embeddings or 300, dim or 64)
        shape = replace(seed_shape("seed", *sizes), prefetch=prefetch)
        found = hybrid_epochs.run(
            shape, epochs, warmup_cycles, against_torch=against is not None, lane=lane
        )
        click.echo(hybrid_epochs.table(found, shape))
        if file is not None:
            hybrid_epochs.write_json(found, shape, file)
        return 0
    known = shapes(rows)
    chosen = [replace(known[name], prefetch=prefetch) for name in names or WORKLOADS]
    click.echo(_heading())
    measured = benchmark.run(
        chosen,
        against is not None,
        seconds,
        lane=lane,
        on_row=lambda row: click.echo(_line(row)),
    )
    if file is not None:
        benchmark.write_json(measured, file)
    return 0


def _heading() -> str:
    parts = "".join(f"{name:>9}" for name in ("lookup", "forward", "backward", "step", "total"))
    return f"{'workload':<18}{'side':<7}{parts}{'samples/s':>12}{'ratio':>8}   (ms, p50)"


def _line(row: Any) -> str:
    ratio = "" if row.ratio is None else f"{row.ratio:>8.2f}"
    lines = [_side(row.workload, "ours", row.ours_parts, row.ours_samples_per_s) + ratio]
    if row.peer_parts is not None:
        lines.append(_side("", "torch", row.peer_parts, row.peer_samples_per_s))
    return "\n".join(lines)


def _side(name: str, side: str, parts: dict[str, float], rate: float) -> str:
    shown = "".join(f"{value * 1e3:>9.2f}" for value in parts.values())
    return f"{name:<18}{side:<7}{shown}{rate:>12,.0f}"

"""`gradmesh bench table`."""

import json
from pathlib import Path
from typing import Any

import click


@click.command()
@click.option(
    "--rows",
    "sizes",
    default="1000000,10000000,50000000",
    metavar="N,...",
    help="Rows of the tables.  [default: 1M, 10M, 50M]",
)
@click.option("--dim", type=click.IntRange(min=1), default=64, help="Elements of a row.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the rows here.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.01),
    default=2.0,
    help="About how long one measurement takes.  [default: 2]",
)
def table(sizes: str, dim: int, file: Path | None, seconds: float) -> int:
    """Look up 65536 rows of ever bigger tables inside one process, dense and hash.

    The floor is a plain gather from as much memory; the ratio to it stays where lookups are flat.
    """
    # Imported here, so that --help stays quick.
    from gradmesh.benchmarks import table as benchmark

    try:
        wanted = [int(size) for size in sizes.split(",")]
    except ValueError:
        raise click.BadParameter(f"--rows takes whole numbers, not {sizes!r}") from None
    click.echo(f"{'workload':<24}{'ours p50 µs':>12}{'floor µs':>12}{'ratio':>8}{'of dense':>10}")
    rows = benchmark.run(wanted, dim=dim, seconds=seconds, on_row=_show)
    if file is not None:
        file.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


def _show(row: dict[str, Any]) -> None:
    times = f"{row['ours'] * 1e6:>12,.0f}{row['peer'] * 1e6:>12,.0f}"
    ratios = f"{row['ratio']:>8.2f}{row['dense_ratio']:>10.2f}"
    click.echo(f"{row['workload']:<24}{times}{ratios}")

"""`gradmesh bench`: run a benchmark of the table, print its rows and write them as JSON."""

import importlib
import json
from functools import partial
from pathlib import Path
from typing import Any, final

import click

from gradmesh.cli.bench_table import BENCHMARKS, Benchmark
from gradmesh.cli.output import echo


@final
class BenchGroup(click.Group):
    """A group whose commands are the rows of the table."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all benchmarks."""
        return list(BENCHMARKS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Make the command of a benchmark."""
        if cmd_name not in BENCHMARKS:
            return None
        benchmark = BENCHMARKS[cmd_name]
        return click.Command(
            cmd_name,
            params=list(benchmark.params),
            help=benchmark.help,
            callback=partial(_run, benchmark),
        )


@click.group(cls=BenchGroup)
def bench() -> None:
    """Compare with the peer on this machine: same work, same run, ratios."""


def _run(benchmark: Benchmark, file: Path | None = None, **options: Any) -> int:
    # Imported here, so that --help stays quick.
    from gradmesh.benchmarks.report import BadOption

    module, _, function = benchmark.run.partition(":")
    command = getattr(importlib.import_module(f"gradmesh.benchmarks.{module}"), function)
    try:
        found = command(echo, **benchmark.fixed, **options)
    except BadOption as error:
        raise click.UsageError(str(error)) from None
    if file is not None:
        file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0

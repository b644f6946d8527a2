"""`gradmesh bench diff`."""

from pathlib import Path

import click

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.argument("base", type=_FILE)
@click.argument("test", type=_FILE)
def diff(base: Path, test: Path) -> int:
    """Compare two files of `gradmesh bench ddp --json`: positive means that TEST is faster."""
    from gradmesh.benchmarks.ddp_report import compare

    try:
        lines = list(compare(base, test))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    for text in lines:
        click.echo(text)
    return 0

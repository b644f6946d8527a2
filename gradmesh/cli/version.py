"""`gradmesh version`."""

import click

import gradmesh


@click.command()
def version() -> int:
    """Show the version."""
    click.echo(gradmesh.__version__)
    return 0

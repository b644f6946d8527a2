"""Lines and JSON on standard output; tables and bars are in display.py."""

import json
from typing import Any

import click

from gradmesh.protos.printable import printable, printable_lines


def echo(text: str = "", *, err: bool = False) -> None:
    """Print one line, with control characters as escapes."""
    click.echo(printable(text), err=err)


def echo_lines(text: str, *, err: bool = False) -> None:
    """Print lines, with all control characters but line breaks and tabs as escapes."""
    click.echo(printable_lines(text), err=err)


def echo_json(value: Any, indent: int | None = 2) -> None:
    """Print a value as JSON, which has no control characters."""
    click.echo(json.dumps(value, indent=indent))

"""`gradmesh scale`."""

from typing import cast, get_args

import click

from gradmesh.cli.launcher_option import with_launcher
from gradmesh.launch.launcher import Launcher, Role


@click.command()
@click.argument("size", metavar="ROLE=COUNT")
@with_launcher
def scale(launcher: Launcher, size: str) -> int:
    """Change the number of processes of a role, such as trainer=4; the run goes on with them."""
    role, _, count = size.partition("=")
    if role not in get_args(Role) or not count.isdecimal():
        raise click.BadParameter(f"expected {'|'.join(get_args(Role))}=NUMBER, got {size!r}")
    launcher.scale(cast(Role, role), int(count))
    click.echo(f"{role} processes: {count}")
    return 0

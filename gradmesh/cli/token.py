"""`gradmesh token`."""

from pathlib import Path

import click

from gradmesh.cli.output import echo
from gradmesh.sdk.process.private import make_private_folder, new_token, write_private


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def token(file: Path) -> int:
    """Write a random token to FILE, unless FILE exists.

    Only you can read the file, and enter its folder if that is made, too. Copy it to each machine
    of the cluster, and name it with --token-file or GRADMESH_SECURITY_TOKEN_FILE.
    """
    if file.exists():
        echo(f"{file} exists; nothing was changed")
        return 0
    if not file.parent.exists():
        make_private_folder(file.parent)
    write_private(file, new_token() + "\n")
    echo(f"wrote {file}")
    return 0

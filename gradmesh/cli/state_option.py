"""The `--state` option that up, status and down share."""

from pathlib import Path

import click

state_option = click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".gradmesh"),
    envvar="GRADMESH_STATE",
    help="State folder of the local cluster.  [env: GRADMESH_STATE; default: .gradmesh]",
)

"""`gradmesh parameter-server`."""

from pathlib import Path

import click

from gradmesh.cli.options import configured, process_config
from gradmesh.launch.sections import role_sections
from gradmesh.sdk.node.config import RpcConfig
from gradmesh.sdk.process.config import Sections
from gradmesh.services.config import ParameterServerConfig


@click.command("parameter-server")
@configured(*role_sections("parameter-server"))
def parameter_server(sections: Sections, config: Path | None) -> int:
    """Run a parameter server in the foreground: shards of tables, lookups, gradients."""
    from gradmesh.services.parameter_server.main import run

    return run(sections[ParameterServerConfig], process_config(sections), sections[RpcConfig])

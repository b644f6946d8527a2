"""`gradmesh bench`: every module in this folder is one benchmark, with a command of its name."""

import importlib
import pkgutil
from typing import final

import click


@final
class BenchGroup(click.Group):
    """A group whose commands are the modules of this folder."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all benchmarks."""
        return sorted(module.name for module in pkgutil.iter_modules(__path__))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a benchmark."""
        if cmd_name not in self.list_commands(ctx):
            return None
        command = getattr(importlib.import_module(f"{__name__}.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=BenchGroup)
def bench() -> None:
    """Measure against the peer on this machine: same work, same run, ratios."""

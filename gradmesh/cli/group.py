"""The command group: it lists names and help lines, and imports each command on use.

Importing numba and grpc for `--help` would make every shell completion slow.
"""

import difflib
import importlib
from typing import final

import click

import gradmesh as package
from gradmesh.cli.output import echo

# name: its line in --help
_COMMANDS = {
    "demo": "Train a small model on a local cluster, from start to finish.",
    "train": "Train a job from a file on a local cluster.",
    "eval": "Measure a trained model on other data.",
    "predict": "Write the probabilities that a trained model predicts.",
    "export": "Write a trained model as files readable without gradmesh.",
    "up": "Start a cluster and run it in the foreground.",
    "status": "Show the members and the progress of a cluster.",
    "report": "Follow a training run until it is done, and show its results.",
    "logs": "Show the logs of a cluster's processes.",
    "contexts": "List the open contexts of distributed autograd by worker.",
    "table": "List, inspect, save and restore tables.",
    "checkpoint": "Save, list, inspect and restore checkpoints of runs.",
    "scale": "Change the number of parameter servers or trainers during a run.",
    "down": "End the cluster that `up` started.",
    "doctor": "Find out why processes cannot reach each other.",
    "certs": "Make and show certificates for TLS.",
    "token": "Write a random token to a file.",
    "coordinator": "Run a coordinator in the foreground.",
    "parameter-server": "Run a parameter server in the foreground.",
    "trainer": "Run a trainer in the foreground.",
    "worker": "Run a worker in the foreground: your own functions, called by others.",
    "bench": "Measure against the peer on this machine.",
    "version": "Show the version.",
}
# Modules of commands without a module of their name.
_MODULES = {
    "eval": "trained_model",
    "predict": "trained_model",
    "export": "trained_model",
    "contexts": "status",
    "doctor": "doctor.command",
    "logs": "running",
    "down": "running",
    "version": "group",
}
_PROCESSES = ("coordinator", "parameter-server", "trainer", "worker")


@final
class LazyGroup(click.Group):
    """A group that imports its commands when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order in which a new user needs them."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in _COMMANDS:
            near = difflib.get_close_matches(cmd_name, _COMMANDS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"No such command {cmd_name!r}.{hint}", ctx)
        if cmd_name in _PROCESSES:
            from gradmesh.cli.processes import process_command

            return process_command(cmd_name)
        module = importlib.import_module(f"gradmesh.cli.{_MODULES.get(cmd_name, cmd_name)}")
        command = getattr(module, cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package.__version__, prog_name="gradmesh")
def gradmesh() -> None:
    """Train embedding-heavy models on a cluster of small services.

    Begin with `gradmesh demo`. Settings come from flags, GRADMESH_<SECTION>_<KEY> variables and a
    TOML file, in this order of precedence.
    """


@click.command()
def version() -> int:
    """Show the version."""
    echo(package.__version__)
    return 0

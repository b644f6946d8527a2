"""`gradmesh coordinator|parameter-server|trainer|worker`: one process in the foreground."""

from collections.abc import Callable
from pathlib import Path

import click

from gradmesh.cli.options import configured, process_config
from gradmesh.launch.sections import role_sections
from gradmesh.sdk.process.config import Sections


def process_command(role: str) -> click.Command:
    """Make the command that runs a process of a role.

    It imports only the settings of that role: `--help` of one should not wait for the others.
    """
    run = _RUNNERS[role]

    @click.command(role, help=run.__doc__)
    @configured(*role_sections(role))
    def command(sections: Sections, config: Path | None) -> int:
        return run(sections)

    return command


def _coordinator(sections: Sections) -> int:
    """Run a coordinator in the foreground: members, ranks, tables, progress."""
    from gradmesh.services.config import CoordinatorConfig
    from gradmesh.services.coordinator.main import run

    return run(sections[CoordinatorConfig], process_config(sections))


def _parameter_server(sections: Sections) -> int:
    """Run a parameter server in the foreground: shards of tables, lookups, gradients."""
    from gradmesh.sdk.node.config import RpcConfig
    from gradmesh.services.config import ParameterServerConfig
    from gradmesh.services.parameter_server.main import run

    return run(sections[ParameterServerConfig], process_config(sections), sections[RpcConfig])


def _trainer(sections: Sections) -> int:
    """Run a trainer in the foreground until its job is done."""
    from gradmesh.sdk.node.config import RpcConfig
    from gradmesh.trainer.config import TrainerConfig
    from gradmesh.trainer.job.spec import job_spec_of
    from gradmesh.trainer.main import run

    job = job_spec_of(sections)
    return run(sections[TrainerConfig], job, process_config(sections), sections[RpcConfig])


def _worker(sections: Sections) -> int:
    """Run a worker in the foreground: it serves functions of your own modules."""
    from gradmesh.sdk.node.config import RpcConfig
    from gradmesh.services.config import WorkerConfig
    from gradmesh.services.worker import run

    return run(sections[WorkerConfig], sections[RpcConfig], process_config(sections))


_RUNNERS: dict[str, Callable[[Sections], int]] = {
    "coordinator": _coordinator,
    "parameter-server": _parameter_server,
    "trainer": _trainer,
    "worker": _worker,
}

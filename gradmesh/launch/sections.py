"""The registry of all sections of settings, by role, and how launchers pass them to processes.

Sections are named here and imported on demand: a command that reads a few of them would start
slowly if it imported the models and the process groups of a trainer.
"""

import importlib
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from gradmesh.sdk.process.setting import Section, settings

# In the order of docs/operations.md.
_SECTIONS = {
    "coordinator": "gradmesh.services.config:CoordinatorConfig",
    "parameter_server": "gradmesh.services.config:ParameterServerConfig",
    "trainer": "gradmesh.trainer.config:TrainerConfig",
    "job": "gradmesh.trainer.job.config:JobConfig",
    "data": "gradmesh.trainer.data.config:DataConfig",
    "model": "gradmesh.trainer.models.config:ModelConfig",
    "worker": "gradmesh.services.config:WorkerConfig",
    "rpc": "gradmesh.sdk.node.config:RpcConfig",
    "security": "gradmesh.sdk.process.network:SecurityConfig",
    "transport": "gradmesh.sdk.process.network:TransportConfig",
    "log": "gradmesh.sdk.process.log:LogConfig",
    "metrics": "gradmesh.sdk.process.metrics:MetricsConfig",
    "process": "gradmesh.sdk.process.process:LifecycleConfig",
}
_PROCESS = ("security", "transport", "log", "metrics", "process")
_ROLES = {
    "coordinator": ("coordinator",),
    "parameter-server": ("parameter_server", "rpc"),
    "trainer": ("trainer", "job", "data", "model", "rpc"),
    "worker": ("worker", "rpc"),
}

SECTION_NAMES = tuple(_SECTIONS)
"""The sections of a configuration file; a process reads those that it needs."""


@cache
def _section(name: str) -> type[Section]:
    module, _, class_name = _SECTIONS[name].partition(":")
    found: type[Section] = getattr(importlib.import_module(module), class_name)
    return found


def process_sections() -> tuple[type[Section], ...]:
    """Return the sections that every process reads."""
    return tuple(map(_section, _PROCESS))


def role_sections(role: str) -> tuple[type[Section], ...]:
    """Return the sections that a role reads: its own first, then those of every process."""
    return (*map(_section, _ROLES[role]), *process_sections())


def cluster_sections() -> tuple[type[Section], ...]:
    """Return all sections, in the order of docs/operations.md."""
    return tuple(map(_section, SECTION_NAMES))


def variables(values: Mapping[str, Any], without: tuple[str, ...] = ()) -> dict[str, str]:
    """Return settings as variables of the environment.

    Args:
        values: By `section.key`; those that are None or not declared are omitted.
        without: Keys, or prefixes of keys, to omit.
    """
    declared = {s.key: s.variable for section in cluster_sections() for s in settings(section)}
    return {
        declared[key]: _text(value)
        for key, value in values.items()
        if key in declared and value is not None and not key.startswith(without)
    }


def flags(values: Mapping[str, Any], sections: Iterable[type[Section]]) -> tuple[str, ...]:
    """Return settings as flags of a command.

    Args:
        values: By `section.key`; those of other sections are omitted.
        sections: Sections that the command accepts.

    Returns:
        Flags and values for the command line.
    """
    arguments: list[str] = []
    for section in sections:
        for declared in settings(section):
            value = values.get(declared.key)
            if isinstance(value, bool):
                arguments.append(declared.flag if value else "--no-" + declared.flag[2:])
            elif value is not None:
                arguments += [declared.flag, _text(value)]
    return tuple(arguments)


def command(name: str, *arguments: str, config: Path | None = None) -> tuple[str, ...]:
    """Return the command line of a gradmesh process under supervision.

    Args:
        name: The command, such as `coordinator`.
        arguments: Its flags.
        config: The configuration file that the whole cluster shares.
    """
    shared = () if config is None else ("--config", str(config.absolute()))
    return (sys.executable, "-m", "gradmesh", name, *shared, *arguments, "--lifeline")


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple | list):
        return ",".join(str(item) for item in value)
    return str(value)

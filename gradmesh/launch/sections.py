"""Every table of settings there is, and which of them each role reads.

Tables are named here and imported when they are asked for: a command that reads a few of them would
be slow to start if it imported the models and the process groups of a trainer.
"""

import importlib
from functools import cache

from gradmesh.sdk.process.setting import Section

# In the order of docs/operations.md.
_TABLES = {
    "coordinator": "gradmesh.services.coordinator.config:CoordinatorConfig",
    "parameter_server": "gradmesh.services.parameter_server.config:ParameterServerConfig",
    "trainer": "gradmesh.trainer.config:TrainerConfig",
    "job": "gradmesh.trainer.job.config:JobConfig",
    "data": "gradmesh.trainer.data.config:DataConfig",
    "model": "gradmesh.trainer.models.config:ModelConfig",
    "worker": "gradmesh.services.worker.config:WorkerConfig",
    "rpc": "gradmesh.sdk.rpc.config:RpcConfig",
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

SECTION_NAMES = tuple(_TABLES)
"""What a configuration file may hold; a process reads the tables it needs."""


@cache
def _section(name: str) -> type[Section]:
    module, _, class_name = _TABLES[name].partition(":")
    found: type[Section] = getattr(importlib.import_module(module), class_name)
    return found


def process_sections() -> tuple[type[Section], ...]:
    """Return what every process reads."""
    return tuple(map(_section, _PROCESS))


def role_sections(role: str) -> tuple[type[Section], ...]:
    """Return what a role reads, the role's own table first, then what every process reads."""
    return (*map(_section, _ROLES[role]), *process_sections())


def cluster_sections() -> tuple[type[Section], ...]:
    """Return all of them, in the order of docs/operations.md."""
    return tuple(map(_section, SECTION_NAMES))

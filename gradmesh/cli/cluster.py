"""Settings that the commands pass to a cluster."""

from collections.abc import Iterable
from typing import Any

from gradmesh.sdk.process.config import Sections
from gradmesh.sdk.process.metrics import MetricsConfig
from gradmesh.sdk.process.process import LifecycleConfig
from gradmesh.sdk.process.setting import settings
from gradmesh.services.config import CoordinatorConfig, ParameterServerConfig, WorkerConfig
from gradmesh.trainer.config import TrainerConfig

_COUNTS = ("coordinator.parameter_servers", "coordinator.trainers")


def not_flags() -> tuple[str, ...]:
    """Return the keys without a flag in cluster commands, because they differ by process."""
    own = (CoordinatorConfig, ParameterServerConfig, TrainerConfig, WorkerConfig)
    keys = [s.key for section in own for s in settings(section) if s.key not in _COUNTS]
    return (*keys, "process.lifeline")


def given_by_flag(sections: Sections) -> dict[str, Any]:
    """Return the settings of the command line; file and variables reach children anyway."""
    return _values(sections, (k for k, s in sections.sources.items() if s.startswith("flag")))


def for_children(sections: Sections) -> dict[str, Any]:
    """Return the settings that a launcher passes to the processes."""
    given = ("flag", "environment")
    values = _values(sections, (k for k, s in sections.sources.items() if s.startswith(given)))
    # The supervisor needs these two to lay out the cluster, even at their defaults.
    values["metrics.listen"] = sections[MetricsConfig].listen
    values["process.drain_s"] = sections[LifecycleConfig].drain_s
    return values


def listen_address(sections: Sections) -> str:
    """Return the coordinator's listen address: any free port unless one is configured."""
    configured = "coordinator.listen" in sections.sources
    return sections[CoordinatorConfig].listen if configured else "127.0.0.1:0"


def drain_s(sections: Sections) -> float:
    """Return how long the shutdown of a whole cluster may take: four roles in a row."""
    return 4 * (sections[LifecycleConfig].drain_s + 2.0) + 10.0


def _values(sections: Sections, keys: Iterable[str]) -> dict[str, Any]:
    plain = sections.as_dict()
    return {key: plain[key.partition(".")[0]][key.partition(".")[2]] for key in keys}

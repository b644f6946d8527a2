"""One process of the mesh: its logs, metrics and life set up in one place, in the right order."""

import logging
import os
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, final

from prometheus_client import CollectorRegistry

from gradmesh.sdk.process import fault
from gradmesh.sdk.process.config import section_as_dict
from gradmesh.sdk.process.lifecycle import Lifecycle, LifecycleConfig
from gradmesh.sdk.process.log import LogConfig, set_up_logging
from gradmesh.sdk.process.memory import keep_big_buffers
from gradmesh.sdk.process.metrics import MetricsConfig, MetricsEndpoint, new_registry
from gradmesh.sdk.process.security import SecurityConfig
from gradmesh.sdk.process.setting import Section
from gradmesh.sdk.process.transport import TransportConfig

_log = logging.getLogger(__name__)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessConfig:
    """The sections that every process has."""

    security: SecurityConfig = field(default_factory=SecurityConfig)
    log: LogConfig = field(default_factory=LogConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    lifecycle: LifecycleConfig = field(default_factory=LifecycleConfig)
    transport: TransportConfig = field(default_factory=TransportConfig)

    def sections(self) -> tuple[Section, ...]:
        """Return the sections in the order in which they are documented."""
        return (self.security, self.transport, self.log, self.metrics, self.lifecycle)


@final
class Process:
    """A running process of the mesh; a context manager, entered once in `run`.

    Entering sets up logs, the allocator, the effective configuration's log line, the metrics
    endpoint and the signals. Leaving drains.

    Args:
        role: Which process this is, such as `coordinator` or `trainer-0`.
        config: The shared sections.
        sections: The role's own sections, for the log.

    Attributes:
        life: Signals, drain callbacks, exit code.
        registry: Where the process registers its metrics.
        metrics_address: Where they are served, or None.
        is_ready: Set by the role when it has begun to do its work; /readyz tells.
    """

    def __init__(self, role: str, config: ProcessConfig, *sections: Section) -> None:
        self.role = role
        self.life = Lifecycle(config.lifecycle)
        self.registry: CollectorRegistry = new_registry()
        self.metrics_address: str | None = None
        self.is_ready = False
        self._config = config
        self._sections = (*sections, *config.sections())

    def __enter__(self) -> Self:
        set_up_logging(self._config.log, self.role)
        keep_big_buffers()
        effective = {s.section: section_as_dict(s) for s in self._sections}
        _log.info("starting", extra={"pid": os.getpid(), "config": effective})
        fault.plan(self.role, self._config.lifecycle.faults, self._config.lifecycle.fault_marks)
        self.life.__enter__()
        try:
            self._serve_metrics()
        except BaseException:
            self.life.__exit__()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            # The command line tells the user; this line is for whoever collects the logs.
            _log.error("failed", extra={"error": str(error), "kind": type(error).__name__})
        self.life.__exit__(kind, error, trace)
        if error is None:
            _log.info("stopped", extra={"exit_code": self.life.exit_code})

    def _serve_metrics(self) -> None:
        listen = self._config.metrics.listen
        if listen == "off":
            return
        endpoint = MetricsEndpoint(
            listen, self.registry, lambda: not self.life.stopping, lambda: self.is_ready
        )
        self.metrics_address = endpoint.address
        # Registered first, so closed last: a scrape can still watch the drain.
        self.life.on_drain("metrics endpoint", lambda _: endpoint.close())
        _log.info("serving metrics", extra={"address": endpoint.address})

"""One process of the mesh: set up and ended in one place, in the right order.

It ends on a signal, on a request, or when its parent is gone. Callbacks drain in reverse order
within one deadline, and a watcher thread ends a process that hangs in its drain by `os._exit`.
"""

import gc
import logging
import os
import resource
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self, final

from prometheus_client import CollectorRegistry

from gradmesh.sdk.process import fault
from gradmesh.sdk.process.config import section_as_dict
from gradmesh.sdk.process.log import LogConfig, set_up_logging
from gradmesh.sdk.process.memory import MemoryTrimmer, keep_big_buffers
from gradmesh.sdk.process.metrics import MetricsConfig, MetricsEndpoint, new_registry
from gradmesh.sdk.process.network import SecurityConfig, TransportConfig
from gradmesh.sdk.process.setting import Section, setting

DONE = 0
BAD_CONFIG = 2
LOST_MESH = 3
UNRECOVERABLE = 4
NOT_NEEDED = 5
INTERRUPTED = 130
TERMINATED = 143

_EXIT_CODES = {signal.SIGTERM: TERMINATED, signal.SIGINT: INTERRUPTED}
_STDIN = 0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LifecycleConfig(Section):
    """How a process ends."""

    section: ClassVar[str] = "process"

    drain_s: float = setting(
        10.0,
        "Seconds a process may take to finish its work after SIGTERM before it is cut off.",
        minimum=0.1,
        maximum=3600,
    )
    lifeline: bool = setting(
        False,
        "Whether the process ends when its standard input closes, as its supervisor's death does.",
        hidden=True,
    )
    faults: tuple[str, ...] = setting(
        (),
        "For tests: points at which processes end themselves, worker:point:step[:leave].",
        hidden=True,
    )
    fault_marks: Path | None = setting(
        None, "For tests: folder that remembers which faults have fired.", hidden=True
    )


@final
class Lifecycle:
    """Waits for the end of the process and drains it; a context manager.

    Inside the `with` block register what must be closed with `on_drain`, then either `wait()` or
    work while `stopping` is False. Leaving the block runs the callbacks.

    Args:
        config: The drain deadline and whether there is a lifeline.
        hard_exit: Ends a process that hangs in its drain; `os._exit`, which tests replace.
    """

    def __init__(
        self, config: LifecycleConfig, hard_exit: Callable[[int], object] = os._exit
    ) -> None:
        self._config = config
        self._hard_exit = hard_exit
        self._callbacks: list[tuple[str, Callable[[float], object]]] = []
        self._exit_code: int | None = None
        self._deadline = 0.0
        self._guard = threading.Lock()  # guards _exit_code and _deadline
        self._asked = threading.Event()
        self._drained = threading.Event()
        self._signals: _Signals | None = None

    @property
    def stopping(self) -> bool:
        """Whether the process has been asked to end."""
        return self._exit_code is not None

    @property
    def exit_code(self) -> int:
        """The exit code of the process: 0 unless a signal or `stop` set another."""
        return DONE if self._exit_code is None else self._exit_code

    def on_drain(self, name: str, callback: Callable[[float], object]) -> None:
        """Register a callback to run before the process ends.

        Args:
            name: What is drained, for the log.
            callback: Called with the remaining seconds; the last registered is called first.
        """
        self._callbacks.append((name, callback))

    def stop(self, exit_code: int = DONE, reason: str = "") -> None:
        """Ask the process to end; the first request decides the exit code. Thread safe."""
        with self._guard:
            if self._exit_code is not None:
                return
            self._deadline = time.monotonic() + self._config.drain_s
            self._exit_code = exit_code
        self._asked.set()
        if reason:
            _log.info("draining", extra={"reason": reason, "drain_s": self._config.drain_s})

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait until the process is asked to end.

        Returns:
            The exit code, or None when the timeout came first.
        """
        return self._exit_code if self._asked.wait(timeout_s) else None

    def __enter__(self) -> Self:
        threading.Thread(target=self._watch, name="lifecycle-watch", daemon=True).start()
        if threading.current_thread() is threading.main_thread():
            self._signals = _Signals(self._on_signal)
        if self._config.lifeline:
            threading.Thread(target=self._hold_lifeline, name="lifeline", daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()
        try:
            self._drain()
        finally:
            self._drained.set()
            if self._signals is not None:
                self._signals.close()

    def _drain(self) -> None:
        while self._callbacks:
            name, callback = self._callbacks.pop()
            try:
                callback(max(0.0, self._deadline - time.monotonic()))
            except Exception:
                # A callback that fails must not prevent the others.
                _log.exception("drain failed", extra={"part": name})

    def _on_signal(self, number: signal.Signals) -> None:
        if self.stopping:
            self._hard_exit(_EXIT_CODES[number])
        self.stop(_EXIT_CODES[number], number.name)

    def _watch(self) -> None:
        self._asked.wait()
        if not self._drained.wait(max(0.0, self._deadline - time.monotonic()) + 0.5):
            _log.error("drain took too long, cut off", extra={"drain_s": self._config.drain_s})
            self._hard_exit(self.exit_code)

    def _hold_lifeline(self) -> None:
        # os.read, not sys.stdin: a thread blocked in a buffered stream would hold its lock at exit.
        while os.read(_STDIN, 4096):
            pass
        self.stop(TERMINATED, "the supervisor has ended")


@final
class _Signals:
    """Handles signals in a thread of its own, so that a main thread blocked in C code delays none.

    Python runs signal handlers in the main thread, between bytecodes, but writes the number to the
    wakeup descriptor at once.
    """

    def __init__(self, on_signal: Callable[[signal.Signals], None]) -> None:
        self._on_signal = on_signal
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        # Before the handlers: a signal between the two must not be lost.
        self._wakeup_before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._before = {n: signal.signal(n, lambda number, frame: None) for n in _EXIT_CODES}
        threading.Thread(target=self._listen, name="signals", daemon=True).start()

    def close(self) -> None:
        """Restore the former handlers."""
        signal.set_wakeup_fd(self._wakeup_before)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._writer)

    def _listen(self) -> None:
        while numbers := os.read(self._reader, 64):
            for number in numbers:
                if number in _EXIT_CODES:
                    self._on_signal(signal.Signals(number))
        os.close(self._reader)


def raise_file_limit() -> int:
    """Raise the limit of open descriptors to the hard limit; return it.

    Every connection needs a descriptor. The soft limit is low for programs that use `select`,
    which this one does not.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        return soft
    return hard


def freeze_objects() -> None:
    """Exempt all objects made so far from garbage collection.

    A process has some hundred thousand objects of modules and compiled functions. Small calls
    allocate so fast that Python would traverse all of them every few seconds, for a tenth of a
    second. Call it when the process begins to serve; `gc.unfreeze` reverts it.
    """
    gc.freeze()


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
        """Return the sections in the order of the documentation."""
        return (self.security, self.transport, self.log, self.metrics, self.lifecycle)


@final
class Process:
    """A running process of the mesh; a context manager, entered once.

    Entering sets up logs and the allocator, logs the effective configuration, and starts the
    metrics endpoint and the signal handling. Leaving drains.

    Args:
        role: Which process this is, such as `coordinator` or `trainer-0`.
        config: The shared sections.
        sections: The role's own sections, for the log.

    Attributes:
        life: Signals, drain callbacks, exit code.
        registry: The metrics of the process.
        metrics_address: Address of the metrics endpoint, or None.
        is_ready: Set by the role when it has begun its work; /readyz reports it.
        answers: Set by the role that serves calls: whether its server answers; /healthz calls it.
    """

    def __init__(self, role: str, config: ProcessConfig, *sections: Section) -> None:
        self.role = role
        self.life = Lifecycle(config.lifecycle)
        self.registry: CollectorRegistry = new_registry()
        self.metrics_address: str | None = None
        self.is_ready = False
        self.answers: Callable[[], bool] = lambda: True
        self._config = config
        self._sections = (*sections, *config.sections())

    def __enter__(self) -> Self:
        set_up_logging(self._config.log, self.role)
        keep_big_buffers()
        raise_file_limit()
        effective = {s.section: section_as_dict(s) for s in self._sections}
        _log.info("starting", extra={"pid": os.getpid(), "config": effective})
        fault.plan(self.role, self._config.lifecycle.faults, self._config.lifecycle.fault_marks)
        self.life.__enter__()
        trimmer = MemoryTrimmer()
        self.life.on_drain("memory", lambda _: trimmer.close())
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
            # The command line prints it for the user; this line is for log collectors.
            _log.error("failed", extra={"error": str(error), "kind": type(error).__name__})
        self.life.__exit__(kind, error, trace)
        if error is None:
            _log.info("stopped", extra={"exit_code": self.life.exit_code})

    def _serve_metrics(self) -> None:
        listen = self._config.metrics.listen
        if listen == "off":
            return
        endpoint = MetricsEndpoint(
            listen,
            self.registry,
            healthy=lambda: not self.life.stopping,
            ready=lambda: self.is_ready,
            answers=lambda: self.answers(),
        )
        self.metrics_address = endpoint.address
        # Registered first, so closed last: metrics can still be scraped during the drain.
        self.life.on_drain("metrics endpoint", lambda _: endpoint.close())
        _log.info("serving metrics", extra={"address": endpoint.address})

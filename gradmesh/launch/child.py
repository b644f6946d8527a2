"""One process under supervision, in a session of its own, with its output read and a lifeline.

The child's standard input is a pipe whose other end only the supervisor holds. When the supervisor
dies, even by SIGKILL, the kernel closes it and the child reads the end of its input (the `lifeline`
of gradmesh.sdk.process.process). So no child is orphaned.
"""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from gradmesh.sdk.process.private import open_private

_LONGEST_LINE_BYTES = 1 << 16


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpec:
    """The description of a child process.

    Attributes:
        name: Unique in the cluster; names the log file.
        role: Children of one role are stopped together.
        argv: Returns the command line, called at each start: addresses may have changed.
        environment: Variables added to those of the supervisor.
        finite: Whether exit code 0 means that the work is done; other children run for ever.
        ready: Returns whether the next children may be started; None starts them at once.
    """

    name: str
    role: str
    argv: Callable[[], Sequence[str]]
    environment: Mapping[str, str] = field(default_factory=dict)
    finite: bool = False
    ready: Callable[[], bool] | None = None


@final
class Child:
    """A running process; starts on construction.

    Args:
        spec: The process to run.
        log_file: File to which all output is appended.
        on_line: Called with each line of output, from a thread of its own.
        on_exit: Called once the process has ended and its output is read, from its own thread.

    Raises:
        OSError: The command cannot be run.
    """

    def __init__(
        self,
        spec: ChildSpec,
        log_file: Path,
        on_line: Callable[[str, str], None],
        on_exit: "Callable[[Child], None]",
    ) -> None:
        self.spec = spec
        self.started = time.monotonic()
        self._on_line = on_line
        self._on_exit = on_exit
        self._gone = threading.Event()
        self._log = open_private(log_file, "ab")
        try:
            self._popen = subprocess.Popen(
                list(spec.argv()),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **spec.environment},
                # Ctrl-C reaches only the supervisor, which then ends the children in order.
                start_new_session=True,
            )
        except BaseException:
            self._log.close()
            raise
        self._pump = threading.Thread(target=self._read, name=f"{spec.name}-output", daemon=True)
        self._pump.start()
        threading.Thread(target=self._reap, name=f"{spec.name}-reaper", daemon=True).start()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._popen.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code as a shell shows it, 128 + n after signal n; None while it runs."""
        code = self._popen.returncode
        return 128 - code if code is not None and code < 0 else code

    @property
    def lived_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    def terminate(self) -> None:
        """Ask the process to drain and end."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process and its descendants in the process group."""
        if not self._gone.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def wait(self, timeout_s: float) -> bool:
        """Wait until the process has ended; return whether it has."""
        return self._gone.wait(timeout_s)

    def describe_end(self) -> str:
        """Return in words how the process ended."""
        code = self._popen.returncode
        if code is not None and code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"exited with code {code}"

    def _signal(self, number: signal.Signals) -> None:
        if not self._gone.is_set():
            with contextlib.suppress(ProcessLookupError):
                self._popen.send_signal(number)

    def _read(self) -> None:
        assert self._popen.stdout is not None
        with self._popen.stdout as output, self._log:
            while raw := output.readline(_LONGEST_LINE_BYTES):
                self._log.write(raw)
                self._log.flush()
                self._on_line(self.spec.name, raw.decode(errors="replace").rstrip("\n"))

    def _reap(self) -> None:
        # Before it is reaped the process still owns its id: killing the group cannot hit another.
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._popen.wait()
        self._pump.join(5)
        if self._popen.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._popen.stdin.close()
        self._gone.set()
        self._on_exit(self)

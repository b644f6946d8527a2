"""A process under test, watched from outside: alive, bounded, and silent in its log."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]

_START_S = 120.0
_RSS_GROWTH = 256 << 20
_THREAD_GROWTH = 96
_FD_GROWTH = 160
_TRACES = ("Traceback", "internal error", "Segmentation fault", "Fatal Python error")


@dataclass(frozen=True)
class Footprint:
    """What a process holds."""

    rss: int
    threads: int
    descriptors: int


class WatchedProcess:
    """A process of the mesh; its standard error goes to a file.

    Args:
        name: Its name in findings.
        command: What follows `gradmesh` on the command line.
        folder: Where its log goes.
        environment: Its variables.
    """

    def __init__(
        self, name: str, command: list[str], folder: Path, environment: Mapping[str, str]
    ) -> None:
        self.name = name
        self._log = folder / f"{name}.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", "-m", "gradmesh", *command],
                cwd=ROOT,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._read = 0
        self._baseline: Footprint | None = None

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Wait for a condition; raise with the log if the process ends first."""
        end = time.monotonic() + _START_S
        while not ready():
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{self.name} does not start:\n{self._log.read_text()[-4000:]}")
            time.sleep(0.02)

    def footprint(self) -> Footprint:
        """Return what the process holds now."""
        seen = psutil.Process(self.process.pid)
        with seen.oneshot():
            return Footprint(seen.memory_info().rss, seen.num_threads(), seen.num_fds())

    def set_baseline(self) -> None:
        """Measure growth from now on."""
        self._baseline = self.footprint()

    def problems(self) -> list[str]:
        """Return what is wrong since the last call."""
        if (code := self.process.poll()) is not None:
            return [f"{self.name} ended with {code}: {self._new_lines()[-3000:]}"]
        found = []
        text = self._new_lines()
        if any(trace in text for trace in _TRACES):
            found.append(f"{self.name} logged an internal error: {text[-3000:]}")
        return found + self._growth()

    def _growth(self) -> list[str]:
        before = self._baseline
        if before is None:
            return []
        now = self.footprint()
        limits = {
            "bytes of memory": (now.rss, before.rss + _RSS_GROWTH),
            "threads": (now.threads, before.threads + _THREAD_GROWTH),
            "descriptors": (now.descriptors, before.descriptors + _FD_GROWTH),
        }
        return [
            f"{self.name} holds {have} {what}, more than {most}"
            for what, (have, most) in limits.items()
            if have > most
        ]

    def _new_lines(self) -> str:
        with self._log.open("rb") as log:
            log.seek(self._read)
            data = log.read()
        self._read += len(data)
        return data.decode(errors="replace")

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()

"""A target whose cases run in a process of their own, with limits on memory and time."""

from __future__ import annotations

import json
import mmap
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import IO, ClassVar

import psutil

from tests.fuzz.batch import Batch, Finding, Target
from tests.fuzz.watched_process import ROOT

# Thousands of small files are written and removed; in memory that is quick.
_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
_COMMAND = (sys.executable, "-X", "faulthandler", "-m", "tests.fuzz.sandbox_process")
_START_S = 180.0
_RSS_GROWTH = 256 << 20
_FD_GROWTH = 64
_THREAD_GROWTH = 32


class SandboxTarget(Target):
    """Sends seeds to a process and reads what happened; a new process replaces one that ended."""

    cases: ClassVar[str]
    """Class of the cases, as module:Class."""
    batch_s: ClassVar[float] = 120.0
    """Longest time for the cases of one seed."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix=f"fuzz-{self.name}-", dir=_MEMORY))
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str] = queue.Queue()
        self._baseline: tuple[int, int, int] | None = None
        with (self._folder / "case").open("wb") as file:
            file.write(bytes(8))

    def run(self, seed: int) -> Batch:
        """Run the cases of a seed in the sandbox."""
        try:
            process = self._started()
            assert process.stdin is not None
            process.stdin.write(json.dumps({"seed": seed, "frames": self.frames}) + "\n")
            process.stdin.flush()
            answer = json.loads(self._line(self.batch_s))
        except (OSError, TimeoutError) as error:
            return self._lost(error)
        batch = Batch(answer["frames"], Counter(answer["answers"]))
        batch.findings = [
            Finding(found["what"], bytes.fromhex(found["data"])) for found in answer["findings"]
        ]
        batch.findings += [Finding(text) for text in self._growth(answer["peak"])]
        return batch

    def _started(self) -> subprocess.Popen[str]:
        if self._process is not None:
            return self._process
        work = self._folder / "work"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        with (self._folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [*_COMMAND, self.name, self.cases, str(work), str(self._folder / "case")],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._process, self._lines, self._baseline = process, queue.Queue(), None
        assert process.stdout is not None
        threading.Thread(target=_read, args=(process.stdout, self._lines), daemon=True).start()
        self._line(_START_S)
        return process

    def _line(self, timeout_s: float) -> str:
        try:
            line = self._lines.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError(f"no answer within {timeout_s:.0f} s") from None
        if not line:
            raise ConnectionError("the process has ended")
        return line

    def _lost(self, error: Exception) -> Batch:
        """Return the finding of a case that hangs or that ended the process."""
        with (self._folder / "case").open("rb") as file, _mapped(file) as shared:
            case = int.from_bytes(shared[:8], "little")
        code = self._end()
        log = (self._folder / "log").read_text(errors="replace")[-3000:]
        what = f"case {case}: {error}, exit code {code}:\n{log}"
        return Batch(case, findings=[Finding(what)])

    def _growth(self, peak: int) -> list[str]:
        assert self._process is not None
        seen = psutil.Process(self._process.pid)
        now = peak, seen.num_fds(), seen.num_threads()
        if self._baseline is None:
            self._baseline = now
        names = ("bytes of memory at most", "descriptors", "threads")
        most = (_RSS_GROWTH, _FD_GROWTH, _THREAD_GROWTH)
        found = [
            f"holds {have} {name}, {before} at first"
            for name, have, before, limit in zip(names, now, self._baseline, most, strict=True)
            if have > before + limit
        ]
        if found:
            self._end()
        return found

    def _end(self) -> int | None:
        process, self._process = self._process, None
        if process is None:
            return None
        code = process.poll()
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        return code

    def close(self) -> None:
        """End the process and remove its files."""
        self._end()
        shutil.rmtree(self._folder, ignore_errors=True)


def _read(pipe: IO[str], lines: queue.Queue[str]) -> None:
    try:
        for line in pipe:
            lines.put(line)
    except ValueError:
        pass  # closed
    lines.put("")


def _mapped(file: IO[bytes]) -> mmap.mmap:
    return mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)


class LogTarget(SandboxTarget):
    """The log of a parameter server, recovered after each mutation."""

    name: ClassVar[str] = "log"
    frames: ClassVar[int] = 200
    share: ClassVar[float] = 0.03
    cases: ClassVar[str] = "tests.fuzz.log_cases:LogCases"


class CheckpointTarget(SandboxTarget):
    """Manifests, shard files and row files, restored after each mutation."""

    name: ClassVar[str] = "checkpoint"
    frames: ClassVar[int] = 200
    share: ClassVar[float] = 0.05
    cases: ClassVar[str] = "tests.fuzz.checkpoint_cases:CheckpointCases"


class ConfigTarget(SandboxTarget):
    """Configuration files, variables and flags."""

    name: ClassVar[str] = "config"
    frames: ClassVar[int] = 500
    share: ClassVar[float] = 0.05
    cases: ClassVar[str] = "tests.fuzz.config_cases:ConfigCases"


class ProcessGroupTarget(SandboxTarget):
    """Ports of process groups: handshakes, and frames of a hostile member."""

    name: ClassVar[str] = "process-group"
    frames: ClassVar[int] = 500
    share: ClassVar[float] = 0.05
    cases: ClassVar[str] = "tests.fuzz.process_group_cases:ProcessGroupCases"

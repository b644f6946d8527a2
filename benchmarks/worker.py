"""A process that measures when it is told to: one JSON command a line, one JSON answer a line.

Both sides of a benchmark live in such processes, so that neither sees the other's imports, threads
or memory, and the two can take turns.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias, final

Measure: TypeAlias = Callable[..., list[float]]

# One thread a process: what is compared is the way of a call, not the number of cores.
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def serve(measure: Measure) -> None:
    """Answer commands from standard input until it ends; for use inside the worker."""
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps({"seconds": measure(**json.loads(line))}), flush=True)


def timed(call: Callable[[int], object], rounds: int) -> list[float]:
    """Return the seconds of each of `rounds` calls."""
    seconds = []
    for number in range(rounds):
        begun = time.perf_counter()
        call(number)
        seconds.append(time.perf_counter() - begun)
    return seconds


@final
class Worker:
    """The parent's view of such a process.

    Args:
        process: The process.
        pauses: Processes to stop while the other side is measured; the peer's spin when idle.
    """

    def __init__(self, process: "subprocess.Popen[str]", pauses: bool) -> None:
        self._process = process
        self._pauses = pauses

    def measure(self, **command: Any) -> list[float]:
        """Run one command; return its seconds.

        Raises:
            RuntimeError: The worker died; its messages are on standard error.
        """
        self.ask(**command)
        return self.answer()

    def ask(self, **command: Any) -> None:
        """Give a command, whose answer comes later."""
        self._signal(signal.SIGCONT)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def answer(self) -> list[float]:
        """Return the seconds of the command that was given.

        Raises:
            RuntimeError: The worker died; its messages are on standard error.
        """
        seconds: list[float] = self._read()["seconds"]
        self._signal(signal.SIGSTOP)
        return seconds

    def pause(self) -> None:
        """Stop the process until `resume`, whatever it does."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let the process go on."""
        os.killpg(self._process.pid, signal.SIGCONT)

    def wait_ready(self) -> None:
        """Wait until the worker takes commands."""
        self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        raise RuntimeError(f"a benchmark process ended with {self._process.wait(10)}")

    def _signal(self, number: int) -> None:
        if self._pauses:
            os.killpg(self._process.pid, number)


@contextmanager
def start(
    module: str, *arguments: str, pauses: bool = False, waits: bool = True
) -> Iterator[Worker]:
    """Run a module as a worker, in a process group of its own; it ends with the block.

    Args:
        module: What to run.
        arguments: For its command line.
        pauses: Whether to stop it between commands.
        waits: Whether to return when it takes commands; else the caller has to wait.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        env={**os.environ, **_ENVIRONMENT},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        worker = Worker(process, pauses)
        if waits:
            worker.wait_ready()
        yield worker
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()

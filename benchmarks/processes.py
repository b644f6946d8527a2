"""Processes that measure on command: one JSON command a line, one JSON answer a line.

Both sides of a benchmark live in processes of their own, so that neither sees the other's imports,
threads or memory, and the two can take turns.
"""

import ctypes
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, TypeAlias, final

Measure: TypeAlias = Callable[..., list[float]]

_PACKAGE = "gradmesh.benchmarks"
_PR_SET_PDEATHSIG = 1
# One thread a process: what is compared is the path of a call, not the number of cores.
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def serve(measure: Measure) -> None:
    """Answer commands from standard input until it ends; for use inside the process."""
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


def take_turns(
    sides: Mapping[str, Callable[[int], list[float]]],
    seconds: float,
    blocks: int,
    *,
    warm_rounds: int = 6,
    warm_s: float = 0.1,
    least: int = 3,
    most: int = 400,
    rewarms: bool = False,
) -> dict[str, list[float]]:
    """Measure sides in turns, in small blocks, so that other load hits all of them alike.

    Args:
        sides: By name a function that runs a number of rounds and returns the seconds of each.
        seconds: About how long one side takes in all.
        blocks: How often the sides take turns.
        warm_rounds: Rounds at first, which are not measured.
        warm_s: About how long each side then warms up, which decides on its number of rounds.
        least: Least rounds of a block, in the warm-up too.
        most: Most rounds of a block.
        rewarms: Whether to warm up before each block: the side before it leaves cold caches.
    """
    rounds: dict[str, int] = {}
    for name, measure in sides.items():
        warm = measure(warm_rounds)
        warm = measure(max(least, min(30, int(warm_s / min(warm)))))
        rounds[name] = max(least, min(most, int(seconds / blocks / sorted(warm)[len(warm) // 2])))
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(blocks):
        for name, measure in sides.items():
            if rewarms:
                measure(max(1, rounds[name] // 10))
            times[name] += measure(rounds[name])
    return times


@final
class MeasuringProcess:
    """The parent's handle of a process that serves commands.

    Args:
        process: The process.
        pauses: Whether to stop it while the other side is measured; the peer spins when idle.
    """

    def __init__(self, process: "subprocess.Popen[str]", pauses: bool) -> None:
        self._process = process
        self._pauses = pauses

    def measure(self, **command: Any) -> list[float]:
        """Run one command; return its seconds.

        Raises:
            RuntimeError: The process died; its messages are on standard error.
        """
        self.ask(**command)
        return self.answer()

    def ask(self, **command: Any) -> None:
        """Send a command; `answer` waits for the result."""
        self._signal(signal.SIGCONT)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def answer(self) -> list[float]:
        """Return the seconds of the command that was sent.

        Raises:
            RuntimeError: The process died; its messages are on standard error.
        """
        seconds: list[float] = self._read()["seconds"]
        self._signal(signal.SIGSTOP)
        return seconds

    def pause(self) -> None:
        """Suspend the process until `resume`."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let the process continue."""
        os.killpg(self._process.pid, signal.SIGCONT)

    def wait_ready(self) -> None:
        """Wait until the process takes commands."""
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
) -> Iterator[MeasuringProcess]:
    """Run a module in a process group of its own; all of it ends with the block.

    Args:
        module: Module of this package.
        arguments: For its command line.
        pauses: Whether to stop it between commands.
        waits: Whether to return when it takes commands; else the caller has to wait.
    """
    process = subprocess.Popen(
        command_line(module, *arguments),
        env={**os.environ, **_ENVIRONMENT},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        measuring = MeasuringProcess(process, pauses)
        if waits:
            measuring.wait_ready()
        yield measuring
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


@final
class RankProcesses:
    """The ranks of one side; all get every command.

    Args:
        processes: One for each rank, in rank order.
    """

    def __init__(self, processes: Sequence[MeasuringProcess]) -> None:
        self._processes = processes

    def measure(self, **command: Any) -> list[float]:
        """Give all ranks one command; return the seconds of rank 0."""
        return self.measure_all(**command)[0]

    def measure_all(self, **command: Any) -> list[list[float]]:
        """Give all ranks one command; return the seconds of each."""
        for rank in self._processes:
            rank.ask(**command)
        return [rank.answer() for rank in self._processes]


@contextmanager
def start_ranks(module: str, *arguments: str, world: int) -> Iterator[RankProcesses]:
    """Run a module of this package as `world` processes, until the block ends.

    Args:
        module: Its name.
        arguments: Its first arguments; then come a folder to meet in, rank and world.
        world: How many there are.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gradmesh-bench-"))
        ranks = [
            stack.enter_context(
                start(module, *arguments, folder, str(rank), str(world), pauses=True, waits=False)
            )
            for rank in range(world)
        ]
        for rank in ranks:
            rank.wait_ready()
        yield RankProcesses(ranks)


def command_line(module: str, *arguments: str) -> list[str]:
    """Return the command line of a module of this package that ends with its parent."""
    return [sys.executable, "-m", f"{_PACKAGE}.processes", module, *arguments]


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, even while it is stopped."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    end_with_parent()
    del sys.argv[0]
    runpy.run_module(f"{_PACKAGE}.{sys.argv[0]}", run_name="__main__", alter_sys=True)

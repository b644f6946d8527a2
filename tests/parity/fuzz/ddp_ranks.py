"""Ranks that run many configurations: processes of torch over gloo, threads of ours.

`python -m tests.parity.fuzz.ddp_ranks FOLDER FD...` is what TorchRanks starts: it imports torch
once, forks one process for each pipe, and each of them serves tasks until its pipe is closed.
"""

from __future__ import annotations

import ctypes
import dataclasses
import datetime
import importlib
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

GROUP_TIMEOUT_S = 8.0
# Of a whole task: collectives end sooner, so only a rank that is stuck elsewhere reaches it.
TASK_TIMEOUT_S = 3 * GROUP_TIMEOUT_S
_PR_SET_PDEATHSIG = 1
ROOT = Path(__file__).parents[3]


@dataclasses.dataclass(frozen=True)
class Raised:
    """The error of a rank in place of a result."""

    kind: str
    text: str
    trace: str = dataclasses.field(default="", compare=False)


SILENT = Raised("Silent", "the rank gave no answer")


def attempt(task: Any, *arguments: Any) -> Any:
    """Return the result of a task, or its error."""
    try:
        return task(*arguments)
    except Exception as error:
        return Raised(type(error).__name__, str(error), traceback.format_exc())


class TorchRanks:
    """Processes with a gloo group of all, and one of the first n for each n below.

    A rank that raised may have left others in the middle of a collective: then all processes are
    replaced before the next task. The kernel ends them with the process that started them.

    Args:
        size: How many.
        timeout_s: After which a rank without an answer is given up.
    """

    def __init__(self, size: int, timeout_s: float = TASK_TIMEOUT_S) -> None:
        self.size, self._timeout_s = size, timeout_s
        self._start()

    def run(self, task: str, config: Any, size: int | None = None) -> list[Any]:
        """Return the result or error of a task on each of the first ranks.

        Args:
            task: module:function; called with the group and the configuration.
            config: Sent to every rank.
            size: How many ranks; all if None.
        """
        used = self._pipes[: self.size if size is None else size]
        for pipe in used:
            pipe.send((task, config, len(used)))
        results, end = [], time.monotonic() + self._timeout_s
        for pipe in used:
            if not pipe.poll(max(0.0, end - time.monotonic())):
                results.append(SILENT)
                continue
            try:
                results.append(pipe.recv())
            except EOFError:
                results.append(Raised("Died", "the process ended"))
        if any(isinstance(result, Raised) for result in results):
            self.restart()
        return results

    def restart(self) -> None:
        """Replace the processes and their groups."""
        self.close()
        self._start()

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            pipe.close()
        try:
            self._host.wait(3)
        except subprocess.TimeoutExpired:
            self._host.kill()
            self._host.wait(10)
        self._folder.cleanup()

    def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        pairs = [Pipe() for _ in range(self.size)]
        self._pipes = [mine for mine, _ in pairs]
        theirs = [other.fileno() for _, other in pairs]
        self._host = subprocess.Popen(
            [sys.executable, "-m", "tests.parity.fuzz.ddp_ranks", self._folder.name]
            + [str(fd) for fd in theirs],
            pass_fds=theirs,
            cwd=ROOT,
            env={**os.environ, "TORCH_CPP_LOG_LEVEL": "ERROR"},
        )
        for _, other in pairs:
            other.close()


class OurRanks:
    """Threads with a process group each; groups are replaced after an error.

    Args:
        size: How many at most.
        backend: Of the groups.
        timeout_s: After which a rank without an answer is given up.
    """

    def __init__(self, size: int, backend: str = "shm", timeout_s: float = TASK_TIMEOUT_S) -> None:
        self.size, self._timeout_s = size, timeout_s
        self._backend = backend
        self._groups: dict[int, list[Any]] = {}

    def run(self, task: Any, config: Any, size: int | None = None) -> list[Any]:
        """Return the result or error of task(group, config) on each rank."""
        groups = self._meet(self.size if size is None else size)
        results = self._on_threads(lambda group: task(group, config), groups)
        if any(isinstance(result, Raised) for result in results):
            self.restart()
        return results

    def restart(self) -> None:
        """Let the groups of the next task be new ones."""
        for size in list(self._groups):
            self._part(size)

    def close(self) -> None:
        """End the groups."""
        self.restart()

    def _meet(self, size: int) -> list[Any]:
        from gradmesh.trainer.process_group import connect

        if size not in self._groups:
            store = _MemoryStore()
            made = self._on_threads(
                lambda rank: connect(
                    store,
                    backend=self._backend,
                    generation=1,
                    rank=rank,
                    world_size=size,
                    timeout_s=GROUP_TIMEOUT_S,
                ),
                range(size),
                TASK_TIMEOUT_S,
            )
            failed = [group for group in made if isinstance(group, Raised)]
            if failed:
                raise RuntimeError(f"the ranks cannot meet: {failed[0].kind}: {failed[0].text}")
            self._groups[size] = made
        return self._groups[size]

    def _on_threads(
        self, function: Callable[[Any], Any], items: Sequence[Any], timeout_s: float | None = None
    ) -> list[Any]:
        """Call a function for each item, each on a thread that does not outlive the process."""
        results: list[Any] = [SILENT] * len(items)

        def run(place: int) -> None:
            results[place] = attempt(function, items[place])

        threads = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(len(items))]
        for thread in threads:
            thread.start()
        end = time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
        # A copy: a thread that was given up may still write.
        return list(results)

    def _part(self, size: int) -> None:
        for group in self._groups.pop(size):
            group.close()


class _MemoryStore:
    """Keys and values shared by the threads of one process."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: bytes) -> None:
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key: str, timeout_s: float) -> bytes:
        with self._changed:
            if not self._changed.wait_for(lambda: key in self._values, timeout_s):
                raise TimeoutError(key)
            return self._values[key]


def _end_with_parent() -> None:
    """Let the kernel end this process when its parent ends, even in a blocking wait."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _host(folder: str, fds: list[int]) -> None:
    _end_with_parent()
    # Ctrl-C reaches the whole group of processes: the one that started this one ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import torch
    import torch.nn.parallel

    torch.set_num_threads(1)
    for rank, fd in enumerate(fds):
        if os.fork() == 0:
            _end_with_parent()
            for other in fds:
                if other != fd:
                    os.close(other)
            code = 1
            try:
                _serve(Connection(fd), folder, rank, len(fds))
                code = 0
            finally:
                os._exit(code)
    for fd in fds:
        os.close(fd)
    for _ in fds:
        os.wait()


def _serve(pipe: Connection, folder: str, rank: int, size: int) -> None:
    import torch.distributed as dist

    logging.disable(logging.WARNING)
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(f"{folder}/store", size),
        rank=rank,
        world_size=size,
        timeout=datetime.timedelta(seconds=GROUP_TIMEOUT_S),
    )
    groups = {n: dist.new_group(list(range(n))) for n in range(1, size)}
    groups[size] = dist.group.WORLD
    while True:
        try:
            task, config, used = pipe.recv()
        except EOFError:
            return
        module, _, name = task.partition(":")
        function = getattr(importlib.import_module(module), name)
        # For each task, because importing parts of torch resets the filters.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = attempt(function, groups[used], config)
        pipe.send(result)


if __name__ == "__main__":
    _host(sys.argv[1], [int(fd) for fd in sys.argv[2:]])

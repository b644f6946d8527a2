"""Four workers: this process is worker0, the others are processes of their own."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import gradmesh as gm
from gradmesh.sdk.rpc import current
from tests.integration.dist_autograd import functions

ROOT = Path(__file__).resolve().parents[3]


class World:
    """A cluster, and workers that call each other.

    Args:
        size: How many workers, this process among them.
    """

    module = "tests.integration.dist_autograd.worker"
    """What the other processes run."""

    def __init__(self, size: int = 4) -> None:
        self.size = size
        self.cluster = gm.LocalCluster(parameter_servers=1).start()
        self.children = {rank: self.start(rank) for rank in range(1, size)}
        functions.rank = 0
        # Other tests of this process may have an agent with session scope.
        self._aside = current._process_agent
        if self._aside is not None:
            current.uninstall(self._aside)
        try:
            self.node = gm.rpc.init(
                "worker0", coordinator=self.cluster.address, rank=0, world_size=size
            )
        except BaseException:
            self._stop()
            raise

    def start(self, rank: int) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", self.module, self.cluster.address, str(rank), str(self.size)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def wait_clean(self, seconds: float = 30.0) -> None:
        """Wait until no worker holds a context."""
        self.wait_until(lambda: self.open_contexts() == [0] * self.size, seconds)

    def open_contexts(self) -> list[int]:
        return [gm.rpc_sync(f"worker{rank}", functions.count_contexts) for rank in range(self.size)]

    def wait_until(self, condition: Callable[[], bool], seconds: float = 30.0) -> None:
        until = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < until, "the condition did not come true in time"
            threading.Event().wait(0.02)

    def close(self) -> None:
        try:
            gm.rpc.shutdown(graceful=False)
        finally:
            if self._aside is not None and not self._aside.closed:
                current.install(self._aside)
            self._stop()

    def _stop(self) -> None:
        for child in self.children.values():
            if child.stdin is not None:
                child.stdin.close()
        for child in self.children.values():
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait(10)
            if child.stdout is not None:
                child.stdout.close()
        self.cluster.stop()

"""What workers hold, to check that repeated rounds of a suite leak nothing.

`make soak`, or any run with TEST_ROUNDS=N, repeats each module of a suite N times in the
same processes and compares what they hold after every round with what they held after the first.
"""

import gc
import os
import re
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import gradmesh as gm

if TYPE_CHECKING:
    import pytest

ROUNDS = int(os.environ.get("TEST_ROUNDS", "1"))
"""How often each module runs."""

# Allocators keep some memory; a leak shows after twenty rounds.
_MEMORY_BYTES = 24 * 2**20
# Pools end idle threads after some seconds and start new ones at any time.
_THREADS = 2
# Pools of gRPC and of backward passes grow to their size when calls overlap, and keep their
# threads. A leaked pool shows by its first thread, number 0.
_OF_A_FIXED_POOL = re.compile(r"(rpc|backward)_[1-9]\d*")


@gm.rpc.register(name="tests.footprint")
def footprint() -> dict[str, int]:
    """Return the resources that this worker holds."""
    # Workers that a test started have ended. The next round starts workers with the same names, and
    # calls to a cached old address would fail.
    gm.rpc.get_worker_infos()
    gc.collect()
    info = gm.rpc.debug_info()
    with open("/proc/self/statm") as file:
        memory = int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    counts = (
        "num_owner_rrefs",
        "num_forks",
        "num_autograd_contexts",
        "num_current_backward_passes",
    )
    return {
        "threads": sum(_counts(thread.name) for thread in threading.enumerate()),
        "memory": memory,
        **{name: info.get(name, 0) for name in counts},
    }


def _counts(thread: str) -> bool:
    """Return whether one more thread of a name is a leak."""
    # Connections of lanes have a thread each and stay open; channels bound their number.
    return not thread.startswith("lane-") and not _OF_A_FIXED_POOL.fullmatch(thread)


def let_go(request: "pytest.FixtureRequest") -> None:
    """Drop the values of fixtures after a test, references among them.

    pytest keeps them until the teardown of the module ends, and the last round would count them.
    """
    request.node.funcargs.clear()


class Rounds:
    """Compares rounds of one module.

    Args:
        workers: Names of the workers.
    """

    def __init__(self, workers: Sequence[str]) -> None:
        self._workers = workers
        self._first: list[dict[str, int]] | None = None

    def end(self) -> None:
        """Check that a round has leaked nothing; wait for what ends in the background."""
        until = time.monotonic() + 30
        while (grown := self._grown()) and time.monotonic() < until:
            threading.Event().wait(0.5)
        assert not grown, "more than after the first round: " + "; ".join(grown)

    def _grown(self) -> list[str]:
        now = [gm.rpc_sync(name, "tests.footprint") for name in self._workers]
        if self._first is None:
            self._first = now
        allowed = {"threads": _THREADS, "memory": _MEMORY_BYTES}
        return [
            f"{worker} has {held[what]} {what}, had {first[what]}"
            for worker, held, first in zip(self._workers, now, self._first, strict=True)
            for what in held
            if held[what] > first[what] + allowed.get(what, 0)
        ]

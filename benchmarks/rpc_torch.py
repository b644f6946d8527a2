"""The peer's side of the rpc benchmark: torch.distributed.rpc with its default transport.

The worker is the caller; it forks off the callee first. Both work with one thread.
"""

import importlib
import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from gradmesh.benchmarks.lookup_torch import join
from gradmesh.benchmarks.processes import end_with_parent, serve, timed


def null() -> None:
    """Do nothing."""


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def echo(value: Any) -> Any:
    """Return the argument."""
    return value


def main() -> None:
    """Start the callee, join it and serve the parent."""
    with tempfile.TemporaryDirectory(prefix="gradmesh-bench-") as folder:
        meeting = f"{folder}/meeting"
        if os.fork() == 0:
            end_with_parent()
            # The parent must see the caller's output end when the caller does.
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, sys.stdin.fileno())
            os.dup2(nothing, sys.stdout.fileno())
            join("server", 0, meeting).shutdown()
            os._exit(0)
        rpc = join("client", 1, meeting)

        def measure(workload: str, count: int, rounds: int, **_: Any) -> list[float]:
            return timed(_call(rpc, workload, count), rounds)

        serve(measure)
    # Its shutdown would wait for the callee, which has nothing left to do.
    os._exit(0)


def _call(rpc: Any, workload: str, count: int) -> Callable[[int], object]:
    """Return one call of a workload."""
    import torch

    if workload == "null":
        return lambda turn: rpc.rpc_sync("server", null)
    if workload == "add":
        return lambda turn: rpc.rpc_sync("server", add, args=(turn, 1))
    if workload == "async-100":
        return lambda turn: [
            future.wait()
            for future in [rpc.rpc_async("server", add, args=(n, 1)) for n in range(count)]
        ]
    if workload == "remote":
        return lambda turn: rpc.remote("server", add, args=(turn, 1)).to_here()
    if workload == "later":
        return lambda turn: rpc.rpc_sync("server", later)
    tensor = torch.ones(count)
    return lambda turn: rpc.rpc_sync("server", echo, args=(tensor,))


def later() -> Any:
    """Answer with a future."""
    import torch

    future: Any = torch.futures.Future()
    future.set_result(None)
    return future


later._wrapped_async_rpc_function = later  # type: ignore[attr-defined]  # async_execution's mark


if __name__ == "__main__":
    # The callee finds its functions by the name of their module, which __main__ is not.
    importlib.import_module("gradmesh.benchmarks.rpc_torch").main()

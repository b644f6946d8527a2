"""The peer's side of the lookup benchmark: torch.distributed.rpc with its default transport.

The worker is the client; it forks off the server first. Both work with one thread, and do what ours
do: select rows, or subtract scaled gradients from rows.
"""

import importlib
import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from gradmesh.benchmarks import lookup as load
from gradmesh.benchmarks.processes import end_with_parent, serve, timed

_held: dict[str, Any] = {}  # the server's tables; global, because rpc functions are module-level


def pull(name: str, ids: Any) -> Any:
    """Return rows; runs on the server."""
    return _held[name].index_select(0, ids)


def push(name: str, ids: Any, grads: Any) -> None:
    """Change rows; runs on the server."""
    _held[name].index_add_(0, ids, grads, alpha=-load.LR)


def join(name: str, rank: int, meeting: str) -> Any:
    """Join the peer's rpc as one of two; return its module."""
    import torch
    from torch.distributed import rpc

    torch.set_num_threads(1)
    torch.manual_seed(0)
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{meeting}")
    module: Any = rpc
    module.init_rpc(name, rank=rank, world_size=2, rpc_backend_options=options)
    return module


def _serve_rows(meeting: str) -> None:
    import torch

    torch.set_num_threads(1)
    _held["bench"] = torch.rand(load.ROWS, load.DIM)
    for number in range(load.TABLES):
        _held[f"bench-{number}"] = torch.rand(load.BATCH_ROWS, load.DIM)
    rpc = join("server", 0, meeting)
    rpc.shutdown()


def main() -> None:
    """Start the server, join it and serve the parent."""
    with tempfile.TemporaryDirectory(prefix="gradmesh-bench-") as folder:
        meeting = f"{folder}/meeting"
        if os.fork() == 0:
            end_with_parent()
            # The parent must see the client's output end when the client does.
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, sys.stdin.fileno())
            os.dup2(nothing, sys.stdout.fileno())
            _serve_rows(meeting)
            os._exit(0)
        rpc = join("client", 1, meeting)

        def measure(workload: str, count: int, rounds: int, **_: Any) -> list[float]:
            return timed(_call(rpc, workload, count), rounds)

        serve(measure)
    # Its shutdown would wait for the server, which has nothing left to do.
    os._exit(0)


def _call(rpc: Any, workload: str, count: int) -> Callable[[int], object]:
    """Return one call of a workload."""
    import torch

    if workload == "batch":
        columns = [
            [torch.from_numpy(load.batch(variant)[:, table].copy()) for table in range(load.TABLES)]
            for variant in range(load.VARIANTS)
        ]

        def one_by_one(turn: int) -> object:
            wanted = columns[turn % load.VARIANTS]
            return [
                rpc.rpc_sync("server", pull, args=(f"bench-{table}", wanted[table]))
                for table in range(load.TABLES)
            ]

        return one_by_one
    wanted = [torch.from_numpy(load.ids(count, variant)) for variant in range(load.VARIANTS)]
    if workload == "pull":
        return lambda turn: rpc.rpc_sync(
            "server", pull, args=("bench", wanted[turn % load.VARIANTS])
        )
    grads = torch.from_numpy(load.grads(count))
    return lambda turn: rpc.rpc_sync(
        "server", push, args=("bench", wanted[turn % load.VARIANTS], grads)
    )


if __name__ == "__main__":
    # The server finds its functions by the name of their module, which __main__ is not.
    importlib.import_module("gradmesh.benchmarks.lookup_torch").main()

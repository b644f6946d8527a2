"""The peer's side of the autograd benchmark: torch's distributed autograd over TensorPipe."""

import os
import socket
import subprocess
import sys
import threading
import warnings
from typing import Any

from gradmesh.benchmarks.autograd import WORKERS
from gradmesh.benchmarks.processes import command_line, serve, timed

_SHAPE = (64, 64)
_state: dict[str, Any] = {}


def hop(x: Any, names: list[str]) -> Any:
    """Call the next worker of a chain, and return its result."""
    from torch.distributed import rpc

    y = x * 2
    return rpc.rpc_sync(names[0], hop, args=(y, names[1:])) * 3 if names else y


def scale(x: Any) -> Any:
    """Multiply by a parameter of this worker."""
    return x * _weight()


def weight() -> Any:
    """Refer to the parameter of this worker."""
    from torch.distributed import rpc

    return rpc.RRef(_weight())


def _weight() -> Any:
    import torch

    if "weight" not in _state:
        _state["weight"] = torch.ones(_SHAPE, requires_grad=True)
    return _state["weight"]


def _begin(port: int, rank: int) -> None:
    import torch

    # Imported for its effect: it turns on warnings of what it is made from, at every step.
    import torch.distributed.optim
    from torch.distributed import rpc

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{port}")
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=WORKERS, rpc_backend_options=options)


def _measure(kind: str, size: int, mode: str, rounds: int) -> list[float]:
    import torch
    import torch.distributed.autograd as dist_autograd
    from torch.distributed import rpc

    names = [f"worker{rank}" for rank in range(1, WORKERS)]
    x = torch.ones(_SHAPE, requires_grad=True)
    small = torch.ones(1, requires_grad=True)

    def chain(_: int) -> None:
        with dist_autograd.context() as ctx:
            y = rpc.rpc_sync(names[0], hop, args=(x, names[1:size]))
            dist_autograd.backward(ctx, [y.sum()])

    def fanout(_: int) -> None:
        with dist_autograd.context() as ctx:
            futures = [rpc.rpc_async(name, scale, args=(x,)) for name in names[:size]]
            total = futures[0].wait().sum()
            for future in futures[1:]:
                total = total + future.wait().sum()
            dist_autograd.backward(ctx, [total])

    def contexts(_: int) -> None:
        for _ in range(size):
            with dist_autograd.context() as ctx:
                y = rpc.rpc_sync(names[0], hop, args=(small, []))
                dist_autograd.backward(ctx, [y.sum()])

    if kind == "optimizer":
        # Imported here, because it warns of what it is made from.
        from torch.distributed.optim import DistributedOptimizer

        rrefs = [rpc.rpc_sync(name, weight) for name in names[:size]]
        optimizer = DistributedOptimizer(torch.optim.SGD, rrefs, lr=1e-6)
        with dist_autograd.context() as ctx:
            total = rpc.rpc_sync(names[0], scale, args=(x,)).sum()
            for name in names[1:size]:
                total = total + rpc.rpc_sync(name, scale, args=(x,)).sum()
            dist_autograd.backward(ctx, [total])
            return timed(lambda _: optimizer.step(ctx), rounds)
    return timed({"chain": chain, "fanout": fanout, "contexts": contexts}[kind], rounds)


def main(port: int = 0, rank: int = 0) -> None:
    """Run the measuring process, or one that serves its calls."""
    if rank:
        _begin(port, rank)
        threading.Event().wait()
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for other in range(1, WORKERS):
        subprocess.Popen(command_line("autograd_torch", str(port), str(other)))
    _begin(port, 0)
    serve(_measure)


if __name__ == "__main__":
    # Functions are pickled by the name of their module, which must not be __main__.
    from gradmesh.benchmarks import autograd_torch

    autograd_torch.main(*map(int, sys.argv[1:]))

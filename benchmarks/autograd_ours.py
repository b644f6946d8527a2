"""Our side of the autograd benchmark: this process calls four workers that it starts."""

import subprocess
import sys
from typing import Any

import numpy as np

import gradmesh as gm
from gradmesh.benchmarks.autograd import WORKERS
from gradmesh.benchmarks.processes import command_line, serve, timed
from gradmesh.sdk.process.network import TransportConfig

_SHAPE = (64, 64)
_state: dict[str, Any] = {}


@gm.rpc.register(name="bench.hop")
def hop(x: gm.Tensor, names: list[str]) -> Any:
    """Call the next worker of a chain, and return its result."""
    y = x * 2
    return gm.rpc_sync(names[0], hop, (y, names[1:])) * 3 if names else y


@gm.rpc.register(name="bench.scale")
def scale(x: gm.Tensor) -> Any:
    """Multiply by a parameter of this worker."""
    return x * _weight()


@gm.rpc.register(name="bench.weight")
def weight() -> Any:
    """Refer to the parameter of this worker."""
    return gm.RRef(_weight())


def _weight() -> gm.Tensor:
    if "weight" not in _state:
        _state["weight"] = gm.tensor(np.ones(_SHAPE, np.float32), requires_grad=True)
    made: gm.Tensor = _state["weight"]
    return made


def _begin(address: str, lane: Any, rank: int) -> None:
    gm.rpc.init(
        f"worker{rank}",
        coordinator=address,
        rank=rank,
        world_size=WORKERS,
        transport=TransportConfig(lane=lane),
    )


def _measure(kind: str, size: int, mode: Any, rounds: int) -> list[float]:
    names = [f"worker{rank}" for rank in range(1, WORKERS)]
    x = gm.tensor(np.ones(_SHAPE, np.float32), requires_grad=True)
    small = gm.tensor(np.ones(1, np.float32), requires_grad=True)

    def chain(_: int) -> None:
        with gm.autograd.context() as ctx:
            y = gm.rpc_sync(names[0], hop, (x, names[1:size]))
            gm.autograd.backward(ctx, [y.sum()], mode=mode)

    def fanout(_: int) -> None:
        with gm.autograd.context() as ctx:
            futures = [gm.rpc_async(name, scale, (x,)) for name in names[:size]]
            total = futures[0].result().sum()
            for future in futures[1:]:
                total = total + future.result().sum()
            gm.autograd.backward(ctx, [total], mode=mode)

    def contexts(_: int) -> None:
        for _ in range(size):
            with gm.autograd.context() as ctx:
                y = gm.rpc_sync(names[0], hop, (small, []))
                gm.autograd.backward(ctx, [y.sum()], mode=mode)

    if kind == "optimizer":
        rrefs = [gm.rpc_sync(name, weight) for name in names[:size]]
        optimizer = gm.optim.DistributedOptimizer(
            gm.optim.SGD, rrefs, lr=1e-6, mode="async" if mode == "fast" else "sync"
        )
        with gm.autograd.context() as ctx:
            total = gm.rpc_sync(names[0], scale, (x,)).sum()
            for name in names[1:size]:
                total = total + gm.rpc_sync(name, scale, (x,)).sum()
            gm.autograd.backward(ctx, [total])
            return timed(lambda _: optimizer.step(ctx), rounds)
    return timed({"chain": chain, "fanout": fanout, "contexts": contexts}[kind], rounds)


def main(address: str, lane: str, rank: int = 0) -> None:
    """Run the measuring process, or one that serves its calls."""
    if rank:
        _begin(address, lane, rank)
        sys.stdin.read()
        return
    for other in range(1, WORKERS):
        subprocess.Popen(
            command_line("autograd_ours", address, lane, str(other)),
            stdin=subprocess.PIPE,
        )
    _begin(address, lane, 0)
    serve(_measure)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))

"""Our side of the rpc benchmark, as a worker: `python -m … ADDRESS LANE,LANE`.

The callee is a `gradmesh worker` that imports this module for its functions.
"""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import gradmesh as gm
from gradmesh.benchmarks.rpc import CALLEE
from gradmesh.benchmarks.worker import serve, timed
from gradmesh.sdk.process.network import TransportConfig
from gradmesh.sdk.process.process import keep_big_buffers
from gradmesh.sdk.rpc import current
from gradmesh.sdk.rpc.agent import Agent


@gm.remote(name="gradmesh.bench.null")
def null() -> None:
    """Do nothing."""


@gm.remote(name="gradmesh.bench.add")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@gm.remote(name="gradmesh.bench.echo")
def echo(value: Any) -> Any:
    """Return the argument."""
    return value


@gm.remote(name="gradmesh.bench.later")
@gm.rpc.async_execution
def later() -> Any:
    """Answer with a future."""
    future: gm.Future[None] = gm.Future()
    future.set_result(None)
    return future


def main(address: str, lanes: list[Any]) -> None:
    """Become a worker on each lane and serve the parent."""
    # As every process of a cluster does at its start.
    keep_big_buffers()
    agents = {lane: _join(address, lane) for lane in lanes}

    def measure(lane: str, workload: str, count: int, rounds: int) -> list[float]:
        current.here.set(agents[lane])
        return timed(_call(workload, count), rounds)

    serve(measure)


def _join(address: str, lane: Any) -> Agent:
    transport = TransportConfig(lane=lane)
    node = gm.rpc.init(f"bench-{lane}", coordinator=address, transport=transport, install=False)
    agent = node.agent
    current.here.set(agent)
    gm.rpc.wait_for_workers(CALLEE)
    return agent


def _call(workload: str, count: int) -> Callable[[int], object]:
    """Return one call of a workload."""
    if workload == "null":
        return lambda turn: gm.rpc_sync(CALLEE, null)
    if workload == "add":
        return lambda turn: gm.rpc_sync(CALLEE, add, (turn, 1))
    if workload == "async-100":
        return lambda turn: gm.futures.wait_all(
            [gm.rpc_async(CALLEE, add, (n, 1)) for n in range(count)]
        )
    if workload == "remote":
        return lambda turn: gm.remote(CALLEE, add, (turn, 1)).to_here()
    if workload == "later":
        return lambda turn: gm.rpc_sync(CALLEE, later)
    tensor = gm.tensor(np.ones(count, np.float32))
    return lambda turn: gm.rpc_sync(CALLEE, echo, (tensor,))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2].split(","))

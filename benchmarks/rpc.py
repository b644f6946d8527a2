"""Calls between two processes: registered functions against torch RPC.

The two sides take turns in small blocks, so that other load on the machine hits both. The
peer's processes are stopped while ours work, because they spin when they are idle. This module is
also what our caller runs, and what the callee, a `gradmesh worker`, imports for its functions.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

import gradmesh as gm
from gradmesh.benchmarks.lookup import run_lanes
from gradmesh.benchmarks.processes import serve, timed
from gradmesh.benchmarks.report import HEADING, Echo, Row, as_json, show_line
from gradmesh.launch.local import LocalCluster
from gradmesh.sdk.process.memory import keep_big_buffers
from gradmesh.sdk.process.network import TransportConfig
from gradmesh.sdk.rpc import current
from gradmesh.sdk.rpc.agent import Agent

LANES = ("shm", "tcp", "stream")
CALLEE = "worker-0"


class RpcLoad(NamedTuple):
    """One workload of the benchmark."""

    name: str
    size: int


def loads() -> list[RpcLoad]:
    """Return all workloads."""
    return [
        RpcLoad("null", 0),
        RpcLoad("add", 0),
        RpcLoad("tensor-1k", 1_000),
        RpcLoad("tensor-1m", 1_000_000),
        RpcLoad("async-100", 100),
        RpcLoad("remote", 0),
        RpcLoad("later", 0),
    ]


def run(
    lanes: Sequence[str],
    against_torch: bool,
    seconds: float,
    blocks: int = 5,
    on_row: Callable[[Row], object] = lambda row: None,
    only: Sequence[RpcLoad] | None = None,
) -> list[Row]:
    """Measure every workload on every lane.

    Args:
        lanes: Which of ours to measure.
        against_torch: Whether the peer takes its turns, too.
        seconds: About how long one workload may take on one side.
        blocks: How often the sides take turns.
        on_row: Called with each row as it is known.
        only: The workloads; all by default.
    """
    settings = {"rpc.imports": ["gradmesh.benchmarks.rpc"]}
    with LocalCluster(workers=1, settings=settings) as cluster:
        chosen = {load.name: (load.name, load.size) for load in only or loads()}
        return run_lanes(
            "rpc", cluster.address, chosen, lanes, against_torch, seconds, blocks, on_row
        )


def command(
    echo: Echo,
    *,
    against: str | None,
    lanes: Sequence[str],
    workloads: Sequence[str],
    seconds: float,
) -> Any:
    """Run `gradmesh bench rpc`."""
    echo(HEADING)
    known = {load.name: load for load in loads()}
    return as_json(
        run(
            lanes,
            against is not None,
            seconds,
            on_row=lambda row: echo(show_line(row)),
            only=[known[name] for name in workloads],
        )
    )


@gm.rpc.register(name="gradmesh.bench.null")
def null() -> None:
    """Do nothing."""


@gm.rpc.register(name="gradmesh.bench.add")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@gm.rpc.register(name="gradmesh.bench.echo")
def echo_back(value: Any) -> Any:
    """Return the argument."""
    return value


@gm.rpc.register(name="gradmesh.bench.later")
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
    return lambda turn: gm.rpc_sync(CALLEE, echo_back, (tensor,))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2].split(","))

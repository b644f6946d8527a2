"""Our side of the lookup benchmark, as a worker: `python -m … ADDRESS LANE,LANE`."""

import sys
from collections.abc import Callable
from typing import Any

import gradmesh as gm
from gradmesh.benchmarks import lookup_load as load
from gradmesh.benchmarks.worker import serve, timed
from gradmesh.sdk.process.process import keep_big_buffers


def main(address: str, lanes: list[Any]) -> None:
    """Open the tables over each lane and serve the parent."""
    # As every process of a cluster does at its start.
    keep_big_buffers()
    meshes = {lane: gm.connect(address, lane=lane) for lane in lanes}

    def measure(lane: str, workload: str, count: int, rounds: int) -> list[float]:
        return timed(_call(meshes[lane], workload, count), rounds)

    serve(measure)


def _call(mesh: gm.Mesh, workload: str, count: int) -> Callable[[int], object]:
    """Return one call of a workload."""
    sgd = gm.optim.SGD(lr=load.LR)
    if workload == "batch":
        tables = [
            mesh.table(f"bench-{number}", rows=load.BATCH_ROWS, dim=load.DIM, optimizer=sgd)
            for number in range(load.TABLES)
        ]
        layer = gm.nn.RemoteEmbedding(tables)
        return lambda turn: layer(load.batch(turn % load.VARIANTS))
    table = mesh.table("bench", rows=load.ROWS, dim=load.DIM, optimizer=sgd)
    wanted = [load.ids(count, variant) for variant in range(load.VARIANTS)]
    if workload == "pull":
        return lambda turn: table.lookup(wanted[turn % load.VARIANTS])
    grads = load.grads(count)
    return lambda turn: table.push(wanted[turn % load.VARIANTS], grads)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2].split(","))

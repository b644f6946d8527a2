"""One trainer of our side of the hybrid benchmark.

Arguments: the shape as JSON, the coordinator's address, a number, the lane.
"""

import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import gradmesh as gm
from gradmesh.benchmarks.hybrid_shape import LR, VARIANTS, HybridLoad, Shape
from gradmesh.benchmarks.processes import serve
from gradmesh.engine.autograd import Tensor, as_tensor
from gradmesh.engine.autograd.ops import cat
from gradmesh.engine.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from gradmesh.sdk.autograd import step_context
from gradmesh.sdk.mesh.connect import join_mesh
from gradmesh.sdk.process.memory import keep_big_buffers
from gradmesh.sdk.transport.channel import Dialer
from gradmesh.trainer.process_group import connect


def main(plain: str, address: str, number: str, lane: Any) -> None:
    """Join the cluster and serve the parent."""
    keep_big_buffers()
    shape = Shape.from_dict(json.loads(plain))
    name = f"trainer-{number}"
    mesh = join_mesh(
        address, name=name, role="trainer", address="127.0.0.1:1", dial=Dialer(lane=lane)
    )
    step = _step(mesh, shape)

    def measure(rounds: int) -> list[float]:
        return [second for _ in range(rounds) for second in step()]

    serve(measure)


def _step(mesh: gm.Mesh, shape: Shape) -> Callable[[], list[float]]:
    """Return a step: it gives its figures, in the order of benchmarks.hybrid's columns."""
    place = mesh.connection.join_trainers(60.0)
    group = connect(
        mesh.connection.store(place.generation),
        generation=place.generation,
        rank=place.rank,
        world_size=place.world_size,
        timeout_s=60.0,
    )
    tables = [
        mesh.table(f"t{i}", rows=shape.rows, dim=shape.dim, optimizer=gm.optim.SGD(lr=LR))
        for i in range(shape.tables)
    ]
    if place.rank == 0:
        mesh.connection.start_run(place, [table.name for table in tables])
    group.barrier().wait()
    layer = _layer(tables, shape)
    model = gm.DDP(gm.nn.MLP(shape.sizes), process_group=group, gradient_as_bucket_view=True)
    optimizer = gm.optim.SGD(model.parameters(), lr=LR)
    loads = [shape.load(place.rank, variant) for variant in range(VARIANTS)]
    wanted = [_wanted(load, shape) for load in loads]
    done = 0

    def step() -> list[float]:
        nonlocal done
        load, now = loads[done % VARIANTS], time.perf_counter
        before = mesh.connection.servers.bytes_moved() + group.bytes_moved
        begun = now()
        with step_context(mesh, place.mark(done)) as ctx:
            rows = layer(*wanted[done % VARIANTS])
            if shape.prefetch:
                layer.prefetch(*wanted[(done + 1) % VARIANTS])
            looked_up = now()
            loss = _loss(model, rows, load, shape)
            scored = now()
            gm.autograd.backward(ctx, [loss])
            returned = now()
            gm.step(ctx, optimizer)
        ended = now()
        done += 1
        parts = [looked_up - begun, scored - looked_up, returned - scored, ended - returned]
        moved = mesh.connection.servers.bytes_moved() + group.bytes_moved
        return [*parts, ended - begun, load.samples, moved - before, _most_memory()]

    return step


def _most_memory() -> int:
    """Return the most bytes that this process ever had in memory, pages shared with others too."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _layer(tables: list[gm.Table], shape: Shape) -> Any:
    if shape.batch:
        return gm.nn.RemoteEmbedding(tables, prefetch_depth=shape.prefetch)
    return gm.nn.RemoteEmbeddingBag(tables, mode="sum", prefetch_depth=shape.prefetch)


def _wanted(load: HybridLoad, shape: Shape) -> tuple[Any, ...]:
    """Return what the layer takes: every table gets the same bags."""
    if load.offsets is None:
        return (load.ids,)
    count, ids = load.ids.size, np.tile(load.ids, shape.tables)
    begins = [load.offsets + table * count for table in range(shape.tables)]
    return ids, np.append(np.concatenate(begins), ids.size)


def _loss(model: Any, rows: Tensor, load: HybridLoad, shape: Shape) -> Any:
    flat = rows.reshape(load.samples, -1)
    if load.dense is None:
        scores = model(flat.reshape(-1, shape.inputs))
        return cross_entropy(scores, as_tensor(load.targets))
    scores = model(cat([as_tensor(load.dense), flat], 1)).reshape(-1)
    return binary_cross_entropy_with_logits(scores, as_tensor(load.targets))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A trainer that takes steps when told: `python -m … WORKLOAD SIDE=COORDINATED=ADDRESS …`."""

import sys
from collections.abc import Callable
from typing import Any

import gradmesh as gm
from gradmesh.benchmarks.worker import serve, timed
from gradmesh.engine.autograd import as_tensor
from gradmesh.engine.nn.functional import binary_cross_entropy_with_logits
from gradmesh.sdk.process.memory import keep_big_buffers
from gradmesh.trainer.data import DataConfig
from gradmesh.trainer.data.progression import begin
from gradmesh.trainer.job.assignment import Assignment
from gradmesh.trainer.job.config import JobConfig
from gradmesh.trainer.job.model import make_model
from gradmesh.trainer.models import ModelConfig

# The job of the demo, whose steps are as short as they get, and one of a usual size.
_JOBS = {
    "small": Assignment(),
    "dlrm": Assignment(
        job=JobConfig(batch_size=2048),
        data=DataConfig(rows=(100_000,) * 26, dense_features=13),
        model=ModelConfig(dim=32, bottom=(512, 256), top=(512, 256)),
    ),
}
_VARIANTS = 16


def main(workload: str, sides: list[str]) -> None:
    """Join every cluster and serve the parent."""
    keep_big_buffers()
    steps: dict[str, Callable[[int], object]] = {}
    for text in sides:
        side, coordinated, address = text.split("=")
        if coordinated == "1":
            mesh = gm.connect(address, name="trainer-0", role="trainer", address="127.0.0.1:1")
        else:
            mesh = gm.connect(address)
        steps[side] = _step(mesh, workload, coordinated == "1")
    serve(lambda side, rounds: timed(steps[side], rounds))


def _step(mesh: gm.Mesh, workload: str, coordinated: bool) -> Callable[[int], object]:
    config = _JOBS[workload]
    source = config.source()
    stream = source.stream(begin(1), config.job.batch_size)
    batches = [stream.next() for _ in range(_VARIANTS)]
    adagrad: Any = gm.optim.RowwiseAdagrad(lr=0.01)
    tables = [
        mesh.table(f"{workload}-{i}", rows=rows, dim=config.model.dim, optimizer=adagrad)
        for i, rows in enumerate(source.fields.rows)
    ]
    embeddings = gm.nn.RemoteEmbedding(tables, prefetch_depth=0)
    model = make_model(config, source.fields, embeddings)
    optimizer = gm.optim.SGD(model.parameters(), lr=0.01)
    place = mesh.join_trainers(30.0) if coordinated else None
    if place is not None:
        mesh.start_run(place, tables)
    done = 0

    def step(turn: int) -> None:
        nonlocal done
        batch = batches[done % _VARIANTS]
        with gm.autograd.context(mesh, None if place is None else place.mark(done)) as ctx:
            scores = model(batch.dense, batch.ids)
            loss = binary_cross_entropy_with_logits(scores, as_tensor(batch.labels))
            gm.autograd.backward(ctx, [loss])
            gm.autograd.apply(ctx)
            optimizer.step(ctx.gradients())
        done += 1

    return step


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])

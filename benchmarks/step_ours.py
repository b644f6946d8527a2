"""A trainer that takes steps on command: `python -m … WORKLOAD SIDE=COORDINATED=ADDRESS …`.

A side that ends in `=EVERY=FOLDER` writes a checkpoint every EVERY steps, as the trainers of a
job do; the time that steps waited for it is the answer to `SIDE-stall`.
"""

import sys
import time
from collections.abc import Callable
from typing import Any, final

import gradmesh as gm
from gradmesh.benchmarks.processes import serve, timed
from gradmesh.engine.autograd import as_tensor
from gradmesh.engine.nn.functional import binary_cross_entropy_with_logits
from gradmesh.sdk.autograd import context, step_context
from gradmesh.sdk.mesh.connect import join_mesh
from gradmesh.sdk.process.memory import keep_big_buffers
from gradmesh.trainer.data import DataConfig
from gradmesh.trainer.data.stream import begin
from gradmesh.trainer.job.checkpoints import Checkpoints
from gradmesh.trainer.job.config import JobConfig
from gradmesh.trainer.job.dense import DenseState, dense_arrays
from gradmesh.trainer.job.model import make_model
from gradmesh.trainer.job.spec import JobSpec
from gradmesh.trainer.models import ModelConfig

# The job of the demo, whose steps are as short as they get, and one of a usual size.
_JOBS = {
    "small": JobSpec(),
    "dlrm": JobSpec(
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
    stalls: dict[str, list[float]] = {}
    written: dict[str, Checkpoints] = {}
    for text in sides:
        side, coordinated, address, *periodic = text.split("=")
        if coordinated == "1":
            mesh = join_mesh(
                address, name="trainer-0", role="trainer", address="127.0.0.1:1", replace=True
            )
        else:
            mesh = gm.connect(address)
        steps[side] = step = _Step(mesh, workload, coordinated == "1")
        if periodic:
            every, folder = periodic
            job = JobConfig(checkpoint_path=folder, checkpoint_every_steps=int(every))
            written[side] = Checkpoints(mesh, job, {})
            stalls[f"{side}-stall"] = []
            steps[side] = _stalled(step, written[side], stalls[f"{side}-stall"])

    def measure(side: str, rounds: int) -> list[float]:
        if side in stalls:
            found, stalls[side][:] = list(stalls[side]), []
            return found
        seconds = timed(steps[side], rounds)
        if side in written:
            written[side].finish()  # it must not run into the turn of the other side
        return seconds

    serve(measure)


def _stalled(
    step: "_Step", checkpoints: Checkpoints, stalls: list[float]
) -> Callable[[int], object]:
    """Return a step with what a job does for its checkpoints before and after it."""
    checkpoints.begin([table.spec for table in step.tables], 1 << 40)

    def call(turn: int) -> None:
        begun = time.perf_counter()
        checkpoints.before_step(step.done)
        before = time.perf_counter() - begun
        step(turn)
        begun = time.perf_counter()
        checkpoints.after_step(step.state, 1)
        stalls.append(before + time.perf_counter() - begun)

    return call


@final
class _Step:
    """Steps of one mesh, one after the other.

    Args:
        mesh: The mesh.
        workload: Name.
        coordinated: Whether they are those of a synchronous run.
    """

    def __init__(self, mesh: gm.Mesh, workload: str, coordinated: bool) -> None:
        config = _JOBS[workload]
        source = config.source()
        stream = source.stream(begin(1), config.job.batch_size)
        self._batches = [stream.next() for _ in range(_VARIANTS)]
        adagrad: Any = gm.optim.RowwiseAdagrad(lr=0.01)
        self.tables = [
            mesh.table(f"{workload}-{i}", rows=rows, dim=config.model.dim, optimizer=adagrad)
            for i, rows in enumerate(source.fields.rows)
        ]
        embeddings = gm.nn.RemoteEmbedding(self.tables, prefetch_depth=0)
        self._mesh = mesh
        self._model = make_model(config, source.fields, embeddings)
        self._optimizer = gm.optim.SGD(self._model.parameters(), lr=0.01)
        self._place = mesh.connection.join_trainers(30.0) if coordinated else None
        if self._place is not None:
            mesh.connection.start_run(self._place, [table.name for table in self.tables])
        self.done = 0

    def __call__(self, turn: int) -> None:
        """Take the next step."""
        batch = self._batches[self.done % _VARIANTS]
        place, mesh = self._place, self._mesh
        opened = context(mesh) if place is None else step_context(mesh, place.mark(self.done))
        with opened as ctx:
            scores = self._model(batch.dense, batch.ids)
            loss = binary_cross_entropy_with_logits(scores, as_tensor(batch.labels))
            gm.autograd.backward(ctx, [loss])
            gm.step(ctx, self._optimizer)
        self.done += 1

    def state(self) -> DenseState:
        """Return the dense part, as a checkpoint has it."""
        return DenseState(1, self.done, dense_arrays(self._model, self._optimizer))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])

"""One attempt at the job: the trainers of one generation, from the first step to the last.

Synchronous: all ranks look up rows of step t when step t - 1 is applied everywhere, and both
sides average in rank order. So N trainers give, bit for bit, what one process gives that runs
their batches in rank order, whatever the number of servers.
"""

import contextlib
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Self, final

import numpy as np

from gradmesh.engine.autograd import as_tensor
from gradmesh.engine.nn.functional import binary_cross_entropy_with_logits
from gradmesh.engine.optim import SGD
from gradmesh.protos.coordinator.v1 import status_pb2
from gradmesh.protos.errors import GradmeshError
from gradmesh.sdk.autograd import apply, backward, context
from gradmesh.sdk.mesh.membership import Membership
from gradmesh.sdk.mesh.mesh import Mesh
from gradmesh.sdk.nn.remote_embedding import RemoteEmbedding
from gradmesh.trainer.data import Batch, ClickData
from gradmesh.trainer.ddp import Reducer
from gradmesh.trainer.job.config import JobConfig
from gradmesh.trainer.job.evaluation import evaluate
from gradmesh.trainer.job.meter import Meter
from gradmesh.trainer.job.model import build_model, create_tables
from gradmesh.trainer.process_group import (
    Endpoint,
    LocalProcessGroup,
    ProcessGroup,
    TcpProcessGroup,
)

_log = logging.getLogger(__name__)

# Reports are news, not state: a coordinator on its way back must not hold up a step for long.
_REPORT_S = 1.0


@final
class Run:
    """A run in one generation; a context manager that leaves the group at its end.

    Construction is collective: tables go back to their initial rows, parameters are made equal.

    Args:
        mesh: The mesh.
        membership: This trainer's place in the generation.
        config: The job.
        data: Where samples come from.
        endpoint: Where this trainer listens for its peers.
    """

    def __init__(
        self,
        mesh: Mesh,
        membership: Membership,
        config: JobConfig,
        data: ClickData,
        endpoint: Endpoint,
    ) -> None:
        self._mesh = mesh
        self._membership = membership
        self._config = config
        self._data = data
        self._group = _connect(mesh, membership, config, endpoint)
        with contextlib.ExitStack() as undo:
            undo.callback(self._group.close)
            tables = create_tables(mesh, config)
            if membership.rank == 0:
                mesh.start_run(membership, tables)
            self._group.barrier().wait()
            self._embeddings = RemoteEmbedding(tables, prefetch_depth=config.prefetch_depth)
            self.model = build_model(config, self._embeddings)
            self._reducer = Reducer(self._group, self.model.named_parameters())
            undo.pop_all()
        self._optimizer = SGD(self.model.parameters(), lr=config.learning_rate)
        self._meter = Meter(config.batch_size * membership.world_size)
        self._bytes_before = mesh.servers.bytes_moved()
        # Drawn ahead of their step, for their rows to be fetched.
        self._batches: dict[int, Batch] = {}

    def train(self, is_stopping: Callable[[], bool]) -> dict[str, float] | None:
        """Take all steps and measure the result.

        Args:
            is_stopping: Asked after each step; True ends the run there.

        Returns:
            The figures of `finish`, or None when stopped before the end.
        """
        config = self._config
        for step in range(config.steps):
            loss = self.take_step(step)
            done = step + 1
            self._meter.count(done)
            if done % config.log_every == 0 or done == config.steps:
                self._report(done, loss)
            if is_stopping():
                return None
        return self.finish()

    def take_step(self, step: int) -> float:
        """Take one step; return this rank's loss.

        Args:
            step: Which one, from 0; every rank takes all steps in order.
        """
        batch = self._batches.pop(step, None) or self._draw(step)
        with context(self._mesh, self._membership.mark(step)) as ctx:
            scores = self.model(batch.dense, batch.ids)
            self._prefetch(step)
            loss = binary_cross_entropy_with_logits(scores, as_tensor(batch.labels))
            backward(ctx, [loss])
            gradients = ctx.gradients()
            self._reducer.reduce(gradients)
            apply(ctx)
        self._optimizer.param_groups[0]["lr"] = self._config.learning_rate_at(step)
        self._optimizer.step(gradients)
        return float(loss.item())

    def _draw(self, step: int) -> Batch:
        """Return this rank's batch of a step."""
        rank, size = self._membership.rank, self._membership.world_size
        return self._data.batch("train", step * size + rank, self._config.batch_size)

    def _prefetch(self, step: int) -> None:
        """Ask for the rows of the steps after this one."""
        end = min(step + self._config.prefetch_depth, self._config.steps - 1)
        for later in range(step + 1, end + 1):
            if later not in self._batches:
                self._batches[later] = self._draw(later)
                self._embeddings.prefetch(self._batches[later].ids)

    def _report(self, done: int, loss: float) -> None:
        """Tell the log and the coordinator how far we are; collective, for the mean loss."""
        mean = np.array([loss])
        self._group.all_reduce(mean, "avg").wait()
        progress = status_pb2.Progress(
            generation=self._membership.generation,
            step=done,
            total_steps=self._config.steps,
            loss=float(mean[0]),
            samples_per_s=self._meter.samples_per_s(),
            bytes_moved=self._bytes_moved(),
        )
        _log.info(
            "trained",
            extra={
                "step": done,
                "loss": round(progress.loss, 5),
                "samples_per_s": round(progress.samples_per_s),
            },
        )
        mesh = self._mesh
        try:
            mesh.coordinator.report_progress(
                mesh.name, mesh.incarnation, progress, mesh.deadline(_REPORT_S)
            )
        except GradmeshError as error:
            _log.warning("progress not reported", extra={"error": error.message})

    def finish(self) -> dict[str, float]:
        """Measure the model after the last step, and report the result; collective.

        Returns:
            The figures; the same on every rank but for the time it took.
        """
        # A server applies the last step when the last rank has sent its part: past the barrier
        # every rank has, and rows are final.
        self._group.barrier().wait()
        config = self._config
        figures = evaluate(
            self.model, self._data, self._group, config.eval_batches, config.batch_size
        )
        moved = np.array([self._bytes_moved()], np.int64)
        self._group.all_reduce(moved).wait()
        figures |= {
            "steps": float(config.steps),
            "samples": float(config.steps * config.batch_size * self._membership.world_size),
            "samples_per_s": self._meter.samples_per_s(),
            "seconds": self._meter.seconds(),
            "bytes_moved": float(moved[0]),
        }
        if self._membership.rank == 0:
            self._mesh.report_result(self._membership, figures)
        # Nobody leaves before the result is in: a lost rank 0 would have to measure again.
        self._group.barrier().wait()
        return figures

    def _bytes_moved(self) -> int:
        return self._mesh.servers.bytes_moved() - self._bytes_before + self._group.bytes_moved

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._group.close()
        if kind is None:
            # Otherwise a server is lost, or about to forget: the next run lets it begin anew.
            self._embeddings.discard_prefetched()


def _connect(
    mesh: Mesh, membership: Membership, config: JobConfig, endpoint: Endpoint
) -> ProcessGroup:
    if membership.world_size == 1:
        return LocalProcessGroup()
    return TcpProcessGroup.connect(
        mesh.store(membership.generation),
        generation=membership.generation,
        rank=membership.rank,
        world_size=membership.world_size,
        timeout_s=config.collective_timeout_s,
        endpoint=endpoint,
    )

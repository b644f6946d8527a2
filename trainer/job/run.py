"""The job in one generation of trainers, from where the former one ended to the last step.

Synchronous: all ranks look up rows of step t when step t - 1 is applied everywhere, and both
sides average in rank order. So N trainers give, bit for bit, what one process gives that runs
their batches in rank order, whatever the number of servers.
"""

import contextlib
import logging
import zlib
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, final

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
from gradmesh.sdk.process import fault
from gradmesh.trainer.data import Batch, ClickData
from gradmesh.trainer.ddp import DistributedDataParallel
from gradmesh.trainer.job.agreement import Agreement, agree
from gradmesh.trainer.job.config import JobConfig
from gradmesh.trainer.job.dense import DenseState, dense_arrays, load_dense, pack, unpack
from gradmesh.trainer.job.evaluation import evaluate
from gradmesh.trainer.job.meter import Meter
from gradmesh.trainer.job.model import build_model, create_tables
from gradmesh.trainer.process_group import Backend, Endpoint, connect

_log = logging.getLogger(__name__)

# Reports are news, not state: a coordinator on its way back must not hold up a step for long.
_REPORT_S = 1.0


@final
class Run:
    """A run in one generation; a context manager that leaves the group at its end.

    Construction is collective: the ranks agree on the step to go on from, and parameters are made
    equal. A run that nobody has a part of begins with initial rows and parameters.

    Args:
        mesh: The mesh.
        membership: This trainer's place in the generation.
        config: The job.
        data: Where samples come from.
        endpoint: Where this trainer listens for its peers.
        backend: How trainers exchange gradients.
        held: This trainer's dense part of the run in a former generation, if it was in one.

    Attributes:
        steps: Steps that this trainer has done, those of former generations included.
    """

    def __init__(
        self,
        mesh: Mesh,
        membership: Membership,
        config: JobConfig,
        data: ClickData,
        endpoint: Endpoint,
        backend: Backend = "auto",
        held: DenseState | None = None,
    ) -> None:
        self._mesh = mesh
        self._membership = membership
        self._config = config
        self._data = data
        self._group = connect(
            mesh.store(membership.generation),
            generation=membership.generation,
            rank=membership.rank,
            world_size=membership.world_size,
            timeout_s=config.collective_timeout_s,
            backend=backend,
            endpoint=endpoint,
        )
        with contextlib.ExitStack() as undo:
            undo.callback(self._group.close)
            tables = create_tables(mesh, config)
            names = [table.name for table in tables]
            agreed = agree(mesh, membership, self._group, names, held)
            self._origin, self.steps = agreed.run.origin, agreed.run.steps
            # The averaged gradients of a step, until it is known that the step counts.
            self._pending: dict[Any, Any] | None = None
            self._embeddings = RemoteEmbedding(tables, prefetch_depth=config.prefetch_depth)
            self.model = build_model(config, self._embeddings)
            self._optimizer = SGD(self.model.parameters(), lr=config.learning_rate)
            self._take_over(agreed, held)
            self._replica = DistributedDataParallel(self.model, process_group=self._group)
            undo.pop_all()
        self._meter = Meter(config.batch_size * membership.world_size)
        self._bytes_before = mesh.servers.bytes_moved()
        # Drawn ahead of their step, for their rows to be fetched.
        self._batches: dict[int, Batch] = {}

    def _take_over(self, agreed: Agreement, held: DenseState | None) -> None:
        """Bring the dense part to the agreed step: from what is held, or from another rank."""
        if agreed.source is None:
            return
        if held is not None and held.origin == self._origin:
            load_dense(self.model, self._optimizer, held.arrays)
            if held.pending is not None and held.steps == self.steps - 1:
                named = dict(self.model.named_parameters())
                self._learn(held.steps, {named[n]: array for n, array in held.pending.items()})
        if agreed.lacking:
            is_source = self._group.rank == agreed.source
            data = pack(dense_arrays(self.model, self._optimizer)) if is_source else None
            size = np.array([0 if data is None else data.size], np.int64)
            self._group.broadcast(size, agreed.source).wait()
            sent = np.empty(size[0], np.uint8) if data is None else data.copy()
            self._group.broadcast(sent, agreed.source).wait()
            load_dense(self.model, self._optimizer, unpack(sent))

    def state(self) -> DenseState:
        """Return the dense part as it is, for the next generation."""
        names = {id(p): name for name, p in self.model.named_parameters()}
        pending = self._pending and {
            names[id(p)]: np.array(grad) for p, grad in self._pending.items() if id(p) in names
        }
        arrays = dense_arrays(self.model, self._optimizer)
        return DenseState(self._origin, self.steps, arrays, pending)

    def train(self, is_stopping: Callable[[], bool]) -> dict[str, float] | None:
        """Take all steps and measure the result.

        Args:
            is_stopping: Asked after each step; True ends the run there.

        Returns:
            The figures of `finish`, or None when stopped before the end.
        """
        config = self._config
        for step in range(self.steps, config.steps):
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
            scores = self._replica(batch.dense, batch.ids)
            self._prefetch(step)
            loss = binary_cross_entropy_with_logits(scores, as_tensor(batch.labels))
            backward(ctx, [loss])
            gradients = ctx.gradients()
            self._pending = gradients
            apply(ctx)
        self._learn(step, gradients)
        self.steps, self._pending = step + 1, None
        fault.point("after-step", step)
        return float(loss.item())

    def _learn(self, step: int, gradients: dict[Any, Any]) -> None:
        """Change the dense parameters by the averaged gradients of a step."""
        self._optimizer.param_groups[0]["lr"] = self._config.learning_rate_at(step)
        self._optimizer.step(gradients)

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
        # The last step is on all servers; what is read from now on has it.
        self._mesh.servers.settle(self._mesh.deadline())
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
            # Two runs with the same bits have the same; a float holds it exactly.
            "dense_crc32": float(zlib.crc32(pack(dense_arrays(self.model, self._optimizer)).data)),
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
            # Otherwise a server is lost, or about to forget: the next generation releases all.
            self._embeddings.discard_prefetched()

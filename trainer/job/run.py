"""The run of a job in one generation of trainers: from where the last one ended to the last step.

In sync mode all ranks look up the rows of step t after step t - 1 is applied everywhere, and
servers and trainers average in rank order. So N trainers give, bit for bit, what one process gives
that runs their batches in rank order, for any number of servers.
"""

import contextlib
import logging
import math
import zlib
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self, final

import numpy as np

from gradmesh.engine.autograd import as_tensor
from gradmesh.engine.nn.functional import binary_cross_entropy_with_logits
from gradmesh.protos.coordinator.v1 import status_pb2
from gradmesh.protos.errors import MeshError
from gradmesh.sdk.autograd import apply, backward, step_context
from gradmesh.sdk.cluster.membership import Membership
from gradmesh.sdk.mesh.mesh import Mesh
from gradmesh.sdk.process import fault
from gradmesh.trainer.data import Source, Split
from gradmesh.trainer.data.samples import BadLines
from gradmesh.trainer.errors import TrainingDiverged
from gradmesh.trainer.job.agreement import Agreement, agree
from gradmesh.trainer.job.checkpoints import Checkpoints
from gradmesh.trainer.job.dense import (
    DenseState,
    check_dense,
    clipped,
    dense_arrays,
    load_dense,
    pack,
    unpack,
)
from gradmesh.trainer.job.evaluation import EarlyStopping, evaluate
from gradmesh.trainer.job.feed import DataPosition, Feed
from gradmesh.trainer.job.metrics_log import MetricsLog, Throughput
from gradmesh.trainer.job.model import create_tables, make_model, make_optimizer, replicate
from gradmesh.trainer.job.report import write_report
from gradmesh.trainer.job.saved_model import save_model
from gradmesh.trainer.job.spec import JobSpec, dense_rate, steps_of
from gradmesh.trainer.models import remote_embedding
from gradmesh.trainer.process_group import Backend, Endpoint, connect

_log = logging.getLogger(__name__)

# Reports may be lost: a coordinator that restarts must not delay a step for long.
_REPORT_S = 1.0


@final
class TrainingRun:
    """A run in one generation; a context manager that closes the process group at its end.

    Construction is collective: the ranks agree on the step to resume from, and parameters become
    equal. A run of which no rank holds state begins with initial rows and parameters.

    Args:
        mesh: The mesh.
        membership: This trainer's rank and generation.
        spec: The job.
        source: The data.
        endpoint: Where this trainer listens for its peers.
        backend: How trainers exchange gradients.
        held: This trainer's dense part from an earlier generation, if it was in one.
        checkpoints: Writes and restores checkpoints of the run; none if None.

    Attributes:
        steps: Steps done, those of earlier generations included.
        total_steps: Steps of the whole job.
    """

    def __init__(
        self,
        mesh: Mesh,
        membership: Membership,
        spec: JobSpec,
        source: Source,
        endpoint: Endpoint,
        backend: Backend = "auto",
        held: DenseState | None = None,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        self._mesh = mesh
        self._membership = membership
        self._spec = spec
        self._config = config = spec.job
        self._source = source
        self._held_out_bad = BadLines(spec.data.max_bad_lines)
        samples = source.epoch_samples() if config.epochs else None
        self.total_steps = steps_of(config, samples, membership.world_size)
        self._group = connect(
            mesh.connection.store(membership.generation),
            generation=membership.generation,
            rank=membership.rank,
            world_size=membership.world_size,
            timeout_s=config.collective_timeout_s,
            backend=backend,
            endpoint=endpoint,
        )
        with contextlib.ExitStack() as undo:
            undo.callback(self._group.close)
            # With staleness every trainer applies its own update: world_size updates a step.
            changes = self.total_steps * (membership.world_size if config.staleness else 1)
            tables = create_tables(mesh, spec, source.fields, changes)
            names = [table.name for table in tables]
            self._embeddings = remote_embedding(tables, source.fields, config.prefetch_depth)
            self.model = make_model(spec, source.fields, self._embeddings)
            self._optimizer = make_optimizer(spec, self.model)

            def restore() -> DenseState | None:
                if checkpoints is None:
                    return None
                return checkpoints.restore(lambda arrays: check_dense(self.model, arrays))

            # None, not 0: a run without staleness is synchronous.
            staleness = config.staleness or None
            agreed, held = agree(
                mesh.connection, membership, self._group, names, held, restore, staleness
            )
            self._origin, self.steps = agreed.run.origin, agreed.run.steps
            self._first_step, self._first_batch = agreed.run.steps, agreed.batches
            self._checkpoints = checkpoints if membership.rank == 0 else None
            if self._checkpoints is not None:
                self._checkpoints.begin([table.spec for table in tables], self.total_steps)
            # The averaged gradients of a step, until the step is committed.
            self._pending: dict[Any, Any] | None = None
            saved = self._take_over(agreed, held)
            position = DataPosition(self.steps, agreed.batches, saved)
            self._feed = Feed(source, self._group, config.batch_size, position)
            undo.callback(self._feed.close)
            # After the state was loaded: wrapping in DDP changes the parameters' names.
            self._replica = replicate(self.model, config.ddp, self._group)
            is_first = membership.rank == 0
            folder = config.output if is_first else None
            self._metrics_log = MetricsLog(folder, config.tensorboard, self.steps)
            undo.pop_all()
        self._throughput = Throughput(config.batch_size * membership.world_size, self.steps)
        self._bytes_before = mesh.connection.servers.bytes_moved()
        self._asked = self.steps

    def _take_over(self, agreed: Agreement, held: DenseState | None) -> Mapping[str, Any] | None:
        """Load the dense part of the agreed step: from this rank's state, or from another rank.

        Returns:
            The arrays it was loaded from; None if the run begins.
        """
        if agreed.source is None:
            return None
        saved: Mapping[str, Any] = {}
        if held is not None and held.origin == self._origin:
            saved = held.arrays
            load_dense(self.model, self._optimizer, held.arrays)
            if held.pending is not None and held.steps == self.steps - 1:
                named = dict(self.model.named_parameters())
                self._learn(held.steps, {named[n]: array for n, array in held.pending.items()})
        if agreed.lacking:
            is_source = self._group.rank == agreed.source
            own = {**saved, **dense_arrays(self.model, self._optimizer)}
            data = pack(own) if is_source else None
            size = np.array([0 if data is None else data.size], np.int64)
            self._group.broadcast(size, agreed.source).wait()
            sent = np.empty(size[0], np.uint8) if data is None else data.copy()
            self._group.broadcast(sent, agreed.source).wait()
            saved = unpack(sent)
            load_dense(self.model, self._optimizer, saved)
        return saved

    def state(self) -> DenseState:
        """Return the dense part, for the next generation or a checkpoint."""
        names = {id(p): name for name, p in self.model.named_parameters()}
        pending = self._pending and {
            names[id(p)]: np.array(grad) for p, grad in self._pending.items() if id(p) in names
        }
        arrays = {**dense_arrays(self.model, self._optimizer), **self._feed.arrays()}
        size = self._membership.world_size
        return DenseState(
            self._origin, self.steps, arrays, pending, self._batches_before(self.steps), size
        )

    def _batches_before(self, step: int) -> int:
        """Return the number of batches before a step, of all trainers together."""
        return self._first_batch + (step - self._first_step) * self._membership.world_size

    def train(self, is_stopping: Callable[[], bool]) -> dict[str, float] | None:
        """Take all steps and evaluate the result.

        Args:
            is_stopping: Called after each step; True ends the run there.

        Returns:
            The metrics of `finish`, or None when stopped before the end.
        """
        config = self._config
        early_stopping = EarlyStopping(config.patience)
        for step in range(self.steps, self.total_steps):
            if self._checkpoints is not None:
                self._checkpoints.before_step(step)
            loss = self.take_step(step)
            if self._checkpoints is not None:
                self._checkpoints.after_step(self.state, self._membership.world_size)
            done = step + 1
            self._throughput.count(done)
            is_last = done == self.total_steps
            if done % config.log_every == 0 or is_last:
                self._report(done, loss)
            if config.eval_every and done % config.eval_every == 0 and not is_last:
                found = self._evaluate("validation")
                self._metrics_log.add("validation", done, found)
                _log.info("validated", extra={"step": done, **_rounded(found)})
                if early_stopping.should_stop(found["log_loss"]):
                    _log.info("stopping early", extra={"step": done})
                    break
            if is_stopping():
                return None
        return self.finish()

    def take_step(self, step: int) -> float:
        """Take one step; return this rank's loss.

        Args:
            step: The step number, from 0; every rank takes all steps in order.

        Raises:
            TrainingDiverged: The loss is not finite; rows and parameters are as before the step.
        """
        batch = self._feed.take(step)
        with step_context(self._mesh, self._membership.mark(step)) as ctx:
            scores = self._replica(batch.dense, batch.ids)
            self._prefetch(step)
            loss = binary_cross_entropy_with_logits(scores, as_tensor(batch.labels))
            self._check(float(loss.item()), step)
            backward(ctx, [loss])
            gradients = ctx.gradients()
            self._pending = gradients
            apply(ctx)
        self._learn(step, gradients)
        self.steps, self._pending = step + 1, None
        fault.point("after-step", step)
        return float(loss.item())

    def _check(self, loss: float, step: int) -> None:
        if not math.isfinite(loss):
            rates, job = self._spec.rates, self._config
            raise TrainingDiverged(
                f"the loss of rank {self._membership.rank} is {loss} at step {step}: lower"
                f" job.table_learning_rate ({rates.tables:g}, {job.table_optimizer}) or"
                f" job.learning_rate ({rates.first:g}, {job.optimizer}), or set"
                " job.clip_norm"
            )

    def _learn(self, step: int, gradients: dict[Any, Any]) -> None:
        """Apply the averaged gradients of a step to the dense parameters."""
        config = self._config
        rate = dense_rate(config, self._spec.rates, step, self.total_steps)
        self._optimizer.param_groups[0]["lr"] = rate
        self._optimizer.step(clipped(gradients, config.clip_norm))

    def _prefetch(self, step: int) -> None:
        """Prefetch the rows of the steps after this one."""
        end = min(step + self._config.prefetch_depth, self.total_steps - 1)
        for later in range(max(self._asked, step) + 1, end + 1):
            self._embeddings.prefetch(self._feed.peek(later).ids)
            self._asked = later

    def _report(self, done: int, loss: float) -> None:
        """Report progress to the log and the coordinator; collective, for the mean loss."""
        mean = np.array([loss])
        self._group.all_reduce(mean, "avg").wait()
        self._feed.agree(done)
        progress = status_pb2.Progress(
            generation=self._membership.generation,
            step=done,
            total_steps=self.total_steps,
            loss=float(mean[0]),
            samples_per_s=self._throughput.samples_per_s(),
            bytes_moved=self._bytes_moved(),
        )
        rate = float(self._optimizer.param_groups[0]["lr"])
        _log.info(
            "trained",
            extra={
                "step": done,
                "loss": round(progress.loss, 5),
                "samples_per_s": round(progress.samples_per_s),
                "learning_rate": rate,
            },
        )
        values = {"loss": progress.loss, "samples_per_s": progress.samples_per_s}
        self._metrics_log.add("train", done, {**values, "learning_rate": rate})
        try:
            self._mesh.connection.report_progress(progress, _REPORT_S)
        except MeshError as error:
            _log.warning("progress not reported", extra={"error": error.message})

    def finish(self) -> dict[str, float]:
        """Evaluate the model after the last step, and report the result; collective.

        Returns:
            The metrics of the result; the same on every rank but for times.
        """
        config = self._config
        figures = self._evaluate("test")
        bad_lines = self._feed.bad_lines + self._held_out_bad.count
        sums = np.array([self._bytes_moved(), bad_lines], np.int64)
        self._group.all_reduce(sums).wait()
        figures |= {
            "steps": float(self.steps),
            "samples": float(self._batches_before(self.steps) * config.batch_size),
            "samples_per_s": self._throughput.samples_per_s(),
            "seconds": self._throughput.seconds(),
            "bytes_moved": float(sums[0]),
            # Equal for runs with the same bits; a float holds it exactly.
            "dense_crc32": float(zlib.crc32(pack(dense_arrays(self.model, self._optimizer)).data)),
        }
        if not self._source.is_endless:
            figures["bad_lines"] = float(sums[1])
        self._complete_checkpoint()
        if self._membership.rank == 0:
            self._write_output(figures)
            self._mesh.connection.report_result(self._membership, figures, config.id or "")
        # No rank leaves before the result is reported: without rank 0 another must evaluate again.
        self._group.barrier().wait()
        fault.point("finished", self.steps)
        return figures

    def _complete_checkpoint(self) -> None:
        """Wait until the last checkpoint is written; collective.

        The rank that writes it may be lost, and another can take over only while it still runs.
        """
        left = np.ones(1, np.int64)
        while left[0]:
            writes = self._checkpoints
            done = writes is None or writes.complete(self.state, self._membership.world_size)
            left[0] = not done
            self._group.all_reduce(left).wait()

    def _evaluate(self, split: Split) -> dict[str, float]:
        """Evaluate the model as it is now; collective."""
        # Commit the last step first, so that every server has applied it.
        self._mesh.connection.commit_step()
        self._group.barrier().wait()
        config = self._config
        with self._source.blocks(split, config.batch_size) as blocks:
            return evaluate(
                self.model,
                blocks,
                self._group,
                config.eval_batches,
                config.batch_size,
                streaming=config.eval_auc == "streaming",
                bad_lines=self._held_out_bad,
            )

    def _write_output(self, figures: dict[str, float]) -> None:
        """Write the model and the report into the job's folder, if it has one."""
        self._metrics_log.add("result", self.steps, figures)
        folder = self._config.output
        if folder is None:
            return
        if self._config.save_model:
            save_model(folder, self._mesh, self._spec, self._source.fields, self.model)
        write_report(folder, self._spec.as_dict(), figures, self._metrics_log.lines)
        _log.info("written", extra={"folder": str(folder)})

    def _bytes_moved(self) -> int:
        tables = self._mesh.connection.servers.bytes_moved() - self._bytes_before
        return tables + self._group.bytes_moved

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._group.close()
        self._feed.close()
        self._metrics_log.close()
        if kind is None:
            # After an error the next generation releases what was prefetched.
            self._embeddings.discard_prefetched()


def _rounded(figures: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 5) for name, value in figures.items()}

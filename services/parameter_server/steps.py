"""The run on a server: calls that wait for it, and steps on every server or on none.

A step has two phases. A rank's `Apply` returns when the step is *prepared* here: the gradients of
all ranks are merged and in the log. A trainer whose `Apply` returned from all servers names a later
step in its next message. That message carries the commit: each server applies the prepared step
before it serves the message. A step that some server has not prepared is applied on no server, and
is dropped when the next generation begins.
"""

import logging
import threading
from collections.abc import Callable
from typing import final

from gradmesh.protos.common.v1 import context_pb2
from gradmesh.protos.errors import (
    Draining,
    InvalidRequest,
    RunLost,
    StaleGeneration,
    StaleShardMap,
    StepPending,
)
from gradmesh.sdk.process import fault
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.services.parameter_server.contexts import Contexts
from gradmesh.services.parameter_server.log.record import (
    RunBegun,
    StepAborted,
    StepPrepared,
)
from gradmesh.services.parameter_server.run import Run
from gradmesh.services.parameter_server.writer import Writer

_log = logging.getLogger(__name__)


@final
class Steps:
    """The run of one server.

    Args:
        name: Name of this server.
        contexts: Where gradients are pending until their step.
        writer: Writes records and changes rows.
        max_waiters: Calls that may wait at once. Bounded, so that threads stay free for the
            gradients that they wait for.

    Attributes:
        changed: Guards the run; notified when a step is prepared or applied, or a run ends.
        run: The current run.
        waiters: Number of calls that wait.
        on_step: Called with the run after each step.
        alone: Whether no other server has to prepare a step.
    """

    def __init__(
        self,
        name: str,
        contexts: Contexts,
        *,
        writer: Writer,
        max_waiters: int,
    ) -> None:
        self._name = name
        self._contexts = contexts
        self._writer = writer
        self._max_waiters = max_waiters
        self.on_step: Callable[[Run], object] = lambda run: None
        self.changed = threading.Condition()
        self.run = Run()
        self.waiters = 0
        self.alone = True
        self._prepared_number = 0
        self._fence = 0
        # Number of steps that some rank has begun here, and of those that may begin; None: all.
        self._begun = 0
        self._hold: int | None = None
        self._closed = False

    def fence(self, generation: int) -> None:
        """Fence out the generations before a number; waits of older runs end."""
        with self.changed:
            self._raise_fence(generation)

    def _raise_fence(self, generation: int) -> None:
        if generation > self._fence:
            self._fence = generation
            self.changed.notify_all()

    def resume_after_restart(self) -> None:
        """Fence out the generation that the former process was in.

        Its pending gradients that were not prepared are lost, so its steps cannot continue. The
        next generation begins at the step that all servers have.
        """
        with self.changed:
            if self.run.generation:
                self._raise_fence(self.run.generation + 1)

    def close(self) -> None:
        """End all waits, so that the process can end."""
        with self.changed:
            self._closed = True
            self.changed.notify_all()

    def inspect(self, generation: int) -> Run:
        """Return the run after fencing out every generation before the caller's.

        Raises:
            StaleGeneration: A newer generation began.
        """
        with self.changed:
            self.check_generation(generation)
            self._raise_fence(generation)
            return self.run

    def check_generation(self, generation: int) -> None:
        """Raise unless a generation may begin a run; called under the lock.

        Raises:
            StaleGeneration: A newer one began.
        """
        current = max(self.run.generation, self._fence)
        if generation < current:
            raise StaleGeneration(
                f"generation {generation} has ended, {current} is current; join again",
                generation=generation,
                current=current,
            )

    def has_begun(self, generation: int, world_size: int) -> bool:
        """Return whether a generation's run has begun; called under the lock.

        Raises:
            StaleGeneration: A newer one began.
            InvalidRequest: It began with another number of trainers.
        """
        self.check_generation(generation)
        if generation != self.run.generation:
            return False
        if world_size != self.run.world_size:
            raise InvalidRequest(
                f"generation {generation} began with {self.run.world_size} trainers, not "
                f"{world_size}",
                generation=generation,
            )
        return True

    def begin(self, begun: RunBegun) -> None:
        """Begin a run, or resume one in a new generation; called under the lock.

        Raises:
            RunLost: The run to resume is not here, or not at that step.
        """
        if begun.origin != begun.generation:
            self._resume_run(begun)
        self._writer.log_record(begun, ())
        self.run = Run(
            begun.generation,
            begun.world_size,
            origin=begun.origin,
            steps=begun.steps,
            staleness=begun.staleness,
        )
        self._begun = begun.steps
        self.changed.notify_all()

    def _resume_run(self, begun: RunBegun) -> None:
        """Commit or abort the prepared step, so that all servers are at the same step."""
        run, steps = self.run, begun.steps
        if run.origin != begun.origin or not run.applied_steps <= steps <= run.prepared_steps:
            raise RunLost(
                f"{self._name} does not hold run {begun.origin} at step {steps}: it holds run "
                f"{run.origin} from {run.applied_steps} to {run.prepared_steps}; begin again from "
                "a checkpoint or from the first step",
                worker=self._name,
                origin=begun.origin,
                steps=steps,
            )
        if steps > run.applied_steps:
            self._commit()
        elif run.prepared is not None:
            self._writer.log_record(StepAborted(run.applied_steps), ())
            run.prepared = None

    def wait_to_begin(
        self,
        mark: context_pb2.StepMark,
        deadline: Deadline,
        ahead: bool = False,
        peek: bool = False,
    ) -> None:
        """Wait until a step may begin; a prefetch (`ahead`) does not wait.

        A step may begin when all earlier steps are applied, or within the staleness of the run.

        The step is then recorded as begun, unless the caller only peeks.

        Raises:
            StaleGeneration: The step mark is of another generation.
            StepPending: An earlier step did not complete in time.
        """
        self._wait_until(lambda: ahead or self._may_begin(mark, peek), mark, deadline)

    def _may_begin(self, mark: context_pb2.StepMark, peek: bool) -> bool:
        if self._is_held(mark) or not self.run.may_begin(mark):
            return False
        if not peek:
            self._begun = max(self._begun, mark.step + 1)
        return True

    def _is_held(self, mark: context_pb2.StepMark) -> bool:
        return self._hold is not None and mark.step >= self._hold

    def stop(self) -> tuple[int, int]:
        """Let no further step begin; return the number of begun steps and the run's origin."""
        with self.changed:
            self._hold = max(self._begun, self.run.prepared_steps)
            return self._hold, self.run.origin

    def hold_at(self, step: int, timeout_s: float) -> tuple[bool, int]:
        """Let the steps before `step` begin, and wait until they are prepared.

        Args:
            step: The first step that may not begin.
            timeout_s: How long to wait.

        Returns:
            Whether all of them are prepared, and the generation of the run.
        """
        with self.changed:
            self._hold = step
            self.changed.notify_all()
            done = self.changed.wait_for(lambda: self.run.prepared_steps >= step, timeout_s)
            return done, self.run.generation

    def finish(self, step: int) -> None:
        """Apply the last step before `step`; all servers have prepared it.

        Raises:
            RunLost: Another run has begun.
        """
        with self.changed:
            if self.run.applied_steps < step <= self.run.prepared_steps:
                self._commit()
            self._writer.flush()
            if self.run.applied_steps != step:
                raise RunLost(
                    f"{self._name} is at step {self.run.applied_steps}, not at {step}: another run "
                    "has begun",
                    worker=self._name,
                )

    def release(self) -> None:
        """Let every step begin again; may be called twice."""
        with self.changed:
            self._hold = None
            self.changed.notify_all()

    def wait_prepared(self, mark: context_pb2.StepMark, deadline: Deadline) -> None:
        """Wait until a step is prepared here and its record is durable.

        Raises:
            StaleGeneration: The generation ended; the next one decides whether the step counts.
            StepPending: Gradients are missing.
        """
        if self.run.staleness is None:
            self._wait_until(lambda: self.run.prepared_steps > mark.step, mark, deadline)
            self._writer.wait(self._prepared_number)

    def _wait_until(
        self, is_true: Callable[[], bool], mark: context_pb2.StepMark, deadline: Deadline
    ) -> None:
        with self.changed:
            self.waiters += 1
            until = deadline.to_answer()
            try:
                while True:
                    self.check(mark)
                    self._commit_if_confirmed(mark)
                    if is_true():
                        return
                    if self._closed:
                        raise Draining(f"{self._name} is leaving; ask again", worker=self._name)
                    if until.passed or self.waiters > self._max_waiters:
                        raise StepPending(
                            f"{self._name} has applied {self.run.applied_steps} steps, step "
                            f"{mark.step} needs {mark.step}: some trainer's gradients are missing",
                            applied_steps=self.run.applied_steps,
                        )
                    self.changed.wait(until.remaining_s())
            finally:
                self.waiters -= 1

    def check(self, mark: context_pb2.StepMark) -> None:
        """Raise unless a mark is of the current run and generation; called under the lock.

        Raises:
            StaleGeneration: It is of another generation.
        """
        self.run.check(mark)
        if mark.generation < self._fence:
            raise StaleGeneration(
                f"generation {mark.generation} has ended, {self._fence} is current; join again",
                generation=mark.generation,
                current=self._fence,
            )

    def _commit_if_confirmed(self, mark: context_pb2.StepMark) -> None:
        """Apply the prepared step if a later step number shows that all servers prepared it."""
        if mark.step > self.run.applied_steps and self.run.prepared is not None:
            self._commit()

    def contribute(self, context: context_pb2.ContextId, mark: context_pb2.StepMark) -> int:
        """Stage a rank's gradients of a step; return the number of steps prepared here.

        Raises:
            StaleGeneration: The step mark is of another generation.
            StaleShardMap: The step begins after a reshard.
            StepPending: The step is too far ahead.
            LimitExceeded: Too many gradients wait for those of other ranks.
        """
        with self.changed:
            self.check(mark)
            self._commit_if_confirmed(mark)
            if self._is_held(mark):
                raise StaleShardMap(
                    f"step {mark.step} begins after a reshard; fetch the shard map and ask again",
                    step=mark.step,
                )
            self._begun = max(self._begun, mark.step + 1)
            if self.run.staleness is not None:
                return self._contribute_own(context, mark)
            if not self.run.has(mark):
                self.run.check_ahead(mark)
                self._contexts.check_staged(context, self.run.staged_bytes)
                self.run.stage(mark, self._contexts.take_gradients(context).gradients())
                fault.point("staged", mark.step)
            self._prepare()
            return self.run.prepared_steps

    def _contribute_own(self, context: context_pb2.ContextId, mark: context_pb2.StepMark) -> int:
        """Apply a rank's step by itself, once, in a run with staleness."""
        if not self.run.has(mark):
            self._writer.apply_context(context, mark)
            self.run.advance(mark.rank, mark.step + 1)
            self.on_step(self.run)
            self.changed.notify_all()
        return self.run.own_steps[mark.rank]

    def _prepare(self) -> None:
        while (merged := self.run.prepare()) is not None:
            tables = [gradient.table for gradient in merged]
            record = StepPrepared(self.run.applied_steps, tables, self.alone)
            fault.point("before-prepare", self.run.applied_steps)
            try:
                self._prepared_number = self._writer.log_record(record, merged)
            except BaseException:
                self.run.prepared = None  # the ranks repeat the call
                raise
            fault.point("prepared", self.run.applied_steps)
            if self.alone:
                self._commit(logged=True)
            self.changed.notify_all()

    def commit(self, mark: context_pb2.StepMark) -> int:
        """Apply a step that all servers have prepared; return the number of applied steps.

        Raises:
            StaleGeneration: The step mark is of another generation.
            StepPending: The step is not prepared here.
        """
        with self.changed:
            self.check(mark)
            if self.run.staleness is not None:
                return self.run.applied_steps  # steps are applied when they arrive
            if mark.step >= self.run.prepared_steps:
                raise StepPending(
                    f"{self._name} has not prepared step {mark.step}: some trainer's gradients "
                    "are missing",
                    applied_steps=self.run.applied_steps,
                )
            if mark.step >= self.run.applied_steps:
                self._commit()
            # The caller will read outside the run, and this server may restart before that.
            self._writer.flush()
            return self.run.applied_steps

    def _commit(self, logged: bool = False) -> None:
        step, gradients = self.run.applied_steps, self.run.prepared
        assert gradients is not None
        fault.point("before-commit", step)
        self._writer.commit(step, gradients, logged=logged)
        self.run.commit()
        fault.point("committed", step)
        self.on_step(self.run)
        self.changed.notify_all()

"""The run on a server: calls that wait for it, and steps on every server or on none.

A rank's `Apply` is answered when the step is *prepared* here: every rank's gradients are merged and
in the log. So whoever has the answers of all servers knows that the step cannot be lost, and with
its next message, which names a later step, every server learns that too and applies it before it
serves. A step that not all servers have prepared was seen by nobody, and is dropped when the next
generation begins: not one byte has changed for it.
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
        contexts: Where gradients are until their step.
        writer: Writes records and changes rows.
        max_waiters: Calls that may wait at once, so that they cannot keep the very gradients out
            that they wait for.

    Attributes:
        changed: Guards the run; notified when a step is prepared or applied, or a run ends.
        run: The current one.
        waiters: Calls that wait.
        reached: Told of the run after each step.
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
        # Steps that some rank has begun here, and those that may begin; all of them if None.
        self._begun = 0
        self._hold: int | None = None
        self._closed = False

    def fence(self, generation: int) -> None:
        """Take notice of the trainers' current generation; waits of an older run end."""
        with self.changed:
            self._raise_fence(generation)

    def _raise_fence(self, generation: int) -> None:
        if generation > self._fence:
            self._fence = generation
            self.changed.notify_all()

    def resume_after_restart(self) -> None:
        """Shut out the generation that the former process was part of.

        Gradients that were brought to it and not prepared are gone, so its steps cannot go on: a
        newer generation begins where all servers are.
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
        """Return the run after shutting out every generation before the caller's.

        Raises:
            StaleGeneration: A newer generation began.
        """
        with self.changed:
            self.check_generation(generation)
            self._raise_fence(generation)
            return self.run

    def check_generation(self, generation: int) -> None:
        """Return if a generation may begin a run; called under the lock.

        Raises:
            StaleGeneration: A newer one began.
        """
        current = max(self.run.generation, self._fence)
        if generation < current:
            raise StaleGeneration(
                f"generation {generation} is over, {current} is current; join again",
                generation=generation,
                current=current,
            )

    def has_begun(self, generation: int, world_size: int) -> bool:
        """Tell whether a generation's run has begun; called under the lock.

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
        """Begin a run, or go on with one in a new generation; called under the lock.

        Raises:
            RunLost: The run that shall go on is not here, or not at that step.
        """
        goes_on = begun.origin != begun.generation
        if goes_on:
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
        """Bring the rows to the step that all servers have prepared."""
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
        """Return when the rows are those that a step begins with; at once if ahead of it.

        It then has begun, unless somebody only has a look at the rows.

        Raises:
            StaleGeneration: The mark is of another generation.
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
        """Let no step begin that has not begun here; return how many have, and the run's origin."""
        with self.changed:
            self._hold = max(self._begun, self.run.prepared_steps)
            return self._hold, self.run.origin

    def hold_at(self, step: int, timeout_s: float) -> tuple[bool, int]:
        """Let the steps before one begin.

        Args:
            step: The first that may not begin.
            timeout_s: How long to wait for the others to be prepared.

        Returns:
            Whether all of them are prepared, and the generation that the run is in.
        """
        with self.changed:
            self._hold = step
            self.changed.notify_all()
            done = self.changed.wait_for(lambda: self.run.prepared_steps >= step, timeout_s)
            return done, self.run.generation

    def finish(self, step: int) -> None:
        """Apply the last step before one that may not begin: all servers have prepared it.

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
        """Let every step begin; may be called twice."""
        with self.changed:
            self._hold = None
            self.changed.notify_all()

    def wait_prepared(self, mark: context_pb2.StepMark, deadline: Deadline) -> None:
        """Return when a step cannot be lost here.

        Raises:
            StaleGeneration: The generation is over; whether the step counts, the next one knows.
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
        """Return if a mark is of the current run and generation; called under the lock.

        Raises:
            StaleGeneration: It is not.
        """
        self.run.check(mark)
        if mark.generation < self._fence:
            raise StaleGeneration(
                f"generation {mark.generation} is over, {self._fence} is current; join again",
                generation=mark.generation,
                current=self._fence,
            )

    def _commit_if_confirmed(self, mark: context_pb2.StepMark) -> None:
        """Apply what is prepared if a mark shows that all servers have prepared it."""
        if mark.step > self.run.applied_steps and self.run.prepared is not None:
            self._commit()

    def contribute(self, context: context_pb2.ContextId, mark: context_pb2.StepMark) -> int:
        """Take a rank's gradients of a step; return how many steps are prepared here.

        Raises:
            StaleGeneration: The mark is of another generation.
            StaleShardMap: The step begins when buckets have changed hands.
            StepPending: The step is too far ahead.
        """
        with self.changed:
            self.check(mark)
            self._commit_if_confirmed(mark)
            if self._is_held(mark):
                raise StaleShardMap(
                    f"step {mark.step} begins when buckets have changed hands; fetch the shard map "
                    "and ask again",
                    step=mark.step,
                )
            self._begun = max(self._begun, mark.step + 1)
            if self.run.staleness is not None:
                return self._contribute_own(context, mark)
            if not self.run.has(mark):
                self.run.check_ahead(mark)
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
                self.run.prepared = None  # the ranks ask again
                raise
            fault.point("prepared", self.run.applied_steps)
            if self.alone:
                self._commit(logged=True)
            self.changed.notify_all()

    def commit(self, mark: context_pb2.StepMark) -> int:
        """Apply a step that all servers have prepared; return how many are applied.

        Raises:
            StaleGeneration: The mark is of another generation.
            StepPending: The step is not prepared here.
        """
        with self.changed:
            self.check(mark)
            if self.run.staleness is not None:
                return self.run.applied_steps  # each step is applied when it comes
            if mark.step >= self.run.prepared_steps:
                raise StepPending(
                    f"{self._name} has not prepared step {mark.step}: some trainer's gradients "
                    "are missing",
                    applied_steps=self.run.applied_steps,
                )
            if mark.step >= self.run.applied_steps:
                self._commit()
            # Whoever says so will read outside of the run, also after a restart.
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

"""Backward: from losses on this process to gradients on all of them."""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, final

from gradmesh.engine.autograd import GradientEntry, GradientError, Tensor, run_backward
from gradmesh.protos.autograd.v1 import autograd_pb2 as pb
from gradmesh.protos.common.v1 import worker_pb2
from gradmesh.protos.errors import (
    BackwardAborted,
    DeadlineExceeded,
    GradientMissing,
    MeshError,
    WorkerLost,
)
from gradmesh.sdk.autograd.codec import lost, to_failure
from gradmesh.sdk.autograd.context import Context
from gradmesh.sdk.autograd.share import METHODS
from gradmesh.sdk.transport.channel import PendingCall
from gradmesh.sdk.transport.deadline import Deadline

Mode: TypeAlias = Literal["smart", "fast"]
"""Which sends of a context take part in a backward."""

_MODES = {"smart": pb.PASS_MODE_SMART, "fast": pb.PASS_MODE_FAST}

# After so long without a report the awaited workers are probed.
_PROBE_EVERY_S = 0.5
_PROBE_S = 0.5
# How long the abort of a pass may take to reach the participants.
_ABORT_S = 1.0


def backward(
    ctx: Context,
    roots: Sequence[Tensor],
    retain_graph: bool = False,
    mode: Mode = "smart",
    timeout_s: float | None = None,
) -> None:
    """Run the backward pass of a context over all processes that took part in its forward.

    Gradients of each process's parameters are collected in the context there; `.grad` stays
    untouched. Those of looked-up rows go to their servers. Several backwards in one context add up;
    at the same time they wait for each other. A backward that fails changes nothing.

    Args:
        ctx: The context of the forward pass.
        roots: Losses of one element each, computed on this process.
        retain_graph: Keep the graph for another pass.
        mode: "smart" follows only the sends that the roots depend on. "fast" assumes that all sends
            of the context are used, and sends zeros for unused tensors.
        timeout_s: Deadline of the whole pass; the mesh's by default.

    Raises:
        ContextReleased: The context was released.
        GradientError: There are no roots, or one carries no gradient, has more than one element or
            is a leaf.
        WorkerLost: A worker that takes part was lost.
        BackwardFailed: Something raised on another worker; the message names it.
        GradientMissing: In fast mode, something sent was not used; the message names it.
        DeadlineExceeded: Some worker took too long; the message names it.
    """
    if not isinstance(ctx, Context):
        raise TypeError(f"a context is needed, not a {type(ctx).__name__}")
    if mode not in _MODES:
        raise ValueError(f"no mode {mode!r}; there are smart and fast")
    ctx.check()
    _check_roots(roots)
    deadline = ctx.mesh.connection.deadline(timeout_s)
    if not ctx.turn.acquire(timeout=deadline.remaining_s()):
        raise DeadlineExceeded(f"{ctx}: another backward of this context did not end in time")
    try:
        ctx.passes += 1
        head = pb.Pass(
            context=ctx.id,
            initiator=ctx.messages.worker(ctx.worker),
            number=ctx.passes,
            mode=_MODES[mode],
            retain_graph=retain_graph,
            failed=ctx.failed,
        )
        _Backward(ctx, head, deadline).run(roots)
    finally:
        ctx.turn.release()


def _check_roots(roots: Sequence[Tensor]) -> None:
    if not isinstance(roots, list | tuple) or not all(isinstance(r, Tensor) for r in roots):
        raise TypeError("roots must be a list of tensors")
    if not roots:
        raise GradientError("no roots: pass at least one loss")
    for place, root in enumerate(roots):
        if not root.requires_grad:
            raise GradientError(
                f"root {place} has no gradient: nothing it was made from requires one"
            )
        if root.data.size != 1:
            raise GradientError(
                f"root {place} has shape {root.shape}; a root must have one element"
            )
        if root.grad_fn is None:
            raise GradientError(f"root {place} is a leaf: there is nothing behind it")


@final
class _Backward:
    """Run one pass on the worker that begins it.

    Args:
        ctx: The context.
        head: The pass.
        deadline: Of the whole.
    """

    def __init__(self, ctx: Context, head: pb.Pass, deadline: Deadline) -> None:
        self._ctx = ctx
        self._deadline = deadline
        self._share = ctx.share(head, deadline)
        self._awaited: set[str] = set()

    def run(self, roots: Sequence[Tensor]) -> None:
        share, ctx = self._share, self._ctx
        try:
            plan = self._plan(roots)
            if plan is not None and not plan.sends:
                share.run_locally(
                    lambda: run_backward(roots, None, share.head.retain_graph, ctx.map)
                )
            else:
                share.begin(plan, GradientEntry(roots))
                while not self._is_done():
                    share.work()
                    self._wait()
        except BaseException as error:
            # Other workers may not have this error.
            raise self._abort_pass(error) from error.__cause__
        ctx.tables.note_returned(share.pushed)

    def _plan(self, roots: Sequence[Tensor]) -> pb.Plan | None:
        """Return the sends that take part; None for all."""
        messages = self._ctx.messages
        if self._share.head.mode == pb.PASS_MODE_FAST:
            return None if messages.known_by else pb.Plan()
        sends = messages.plan(roots)
        self._awaited = set(sends) - {self._ctx.worker}
        return pb.Plan(
            sends=[
                pb.Sends(worker=messages.worker(name), messages=counts)
                for name, counts in sends.items()
            ]
        )

    def _unfinished(self) -> set[str]:
        """Return the workers whose shares have not been reported as done."""
        share = self._share
        awaited = self._awaited | share.engaged
        for finished in share.finished.values():
            awaited.update(finished.engaged)
        return awaited - share.finished.keys() - {self._ctx.worker}

    def _is_done(self) -> bool:
        with self._share.changed:
            return self._share.done and not self._unfinished()

    def _wait(self) -> None:
        """Wait until there is work, or all shares are done."""
        share = self._share
        with share.changed:
            while not (share.done and not self._unfinished()):
                if share.error is not None:
                    raise share.error
                if share.has_work():
                    return
                if self._deadline.passed:
                    raise DeadlineExceeded(self._late())
                reported = len(share.finished)
                pause_s = min(_PROBE_EVERY_S, self._deadline.remaining_s())
                if not share.changed.wait(pause_s) and reported == len(share.finished):
                    break
            else:
                return
        self._probe()

    def _late(self) -> str:
        missing = ", ".join(sorted(self._unfinished()))
        return (
            f"{self._share.name} did not end in time; still under way on {missing or 'no worker'}"
        )

    def _probe(self) -> None:
        """Probe the workers that are awaited.

        Raises:
            WorkerLost: One is gone, or has restarted.
        """
        request = pb.ProbePassRequest(backward_pass=self._share.stamped_head())
        soon = Deadline.after(min(_PROBE_S, self._deadline.remaining_s()))
        for worker, call in self._call_all("ProbePass", request, self._unfinished(), soon):
            try:
                answer = call.result()
            except DeadlineExceeded:
                continue  # perhaps busy; the pass has a deadline of its own
            except MeshError as error:
                raise lost(worker, error) from error
            self._check_incarnation(worker, answer.incarnation)
            self._awaited.update(answer.engaged)
            self._share.add_finished(answer.finished)

    def _check_incarnation(self, worker: str, incarnation: int) -> None:
        if self._share.head.mode == pb.PASS_MODE_FAST:
            return
        known: worker_pb2.WorkerId = self._ctx.messages.worker(worker)
        if known.incarnation != incarnation:
            raise WorkerLost(
                f"{worker} has restarted in the middle of {self._share.name}", worker=worker
            )

    def _call_all(
        self, name: str, request: Any, workers: set[str], deadline: Deadline
    ) -> list[tuple[str, PendingCall]]:
        calls = []
        for worker in sorted(workers):
            try:
                channel = self._ctx.agent.channel(worker, deadline)
                calls.append((worker, channel.start(METHODS[name], request, deadline)))
            except MeshError as error:
                if name == "ProbePass":
                    raise lost(worker, error) from error
        return calls

    def _abort_pass(self, error: BaseException) -> BaseException:
        """Abort the pass on all participants; return the error for its caller."""
        share = self._share
        if isinstance(error, BackwardAborted) and share.error is not None:
            error = share.error  # the cause
        known = self._awaited | share.engaged
        for finished in share.finished.values():
            known.update({finished.worker, *finished.engaged})
        waiting = share.abort(error)
        share.roll_back()
        self._ctx.failed.append(share.head.number)
        named = error.metadata.get("worker") if isinstance(error, WorkerLost) else None
        waiting += self._abort_workers(known - {self._ctx.worker, named or ""}, error)
        if isinstance(error, DeadlineExceeded) and waiting:
            return GradientMissing(
                f"{share.name}: no gradient came for {'; '.join(waiting)}: in mode 'fast' "
                "everything sent in the context must be used; use mode='smart'",
                waiting=len(waiting),
            )
        return error

    def _abort_workers(self, workers: set[str], error: BaseException) -> list[str]:
        """Abort the pass on workers; return what they were waiting for."""
        request = pb.AbortPassRequest(
            backward_pass=self._share.stamped_head(),
            failure=to_failure(self._ctx.worker, error),
        )
        waiting: list[str] = []
        for _, call in self._call_all("AbortPass", request, workers, Deadline.after(_ABORT_S)):
            try:
                waiting += call.result().waiting
            except MeshError:
                continue  # lost as well, or the next pass ends this one there
        return waiting


def get_gradients(ctx: Context) -> dict[Any, Any]:
    """Return the gradients of this process's leaves in a context, array by leaf."""
    return ctx.gradients()

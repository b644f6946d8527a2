"""The service of distributed autograd, on every participating process."""

import contextvars
import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias, final

from gradmesh.engine.autograd import GradientError
from gradmesh.engine.backend import ShapeError
from gradmesh.protos import limits
from gradmesh.protos.autograd.v1 import autograd_pb2 as pb
from gradmesh.protos.errors import (
    BackwardAborted,
    ContextReleased,
    InvalidRequest,
    MeshError,
    SendNotFound,
)
from gradmesh.protos.frame import Array, Frame
from gradmesh.protos.limits import check_count
from gradmesh.sdk.autograd.codec import (
    from_failure,
    own_arrays,
    pack_gradients,
    to_failure,
    unpack_gradients,
)
from gradmesh.sdk.autograd.messages import SendRecord
from gradmesh.sdk.autograd.registry import ContextRegistry
from gradmesh.sdk.autograd.share import METHODS, BackwardShare, Returned
from gradmesh.sdk.cluster.openers import OpenerCheck
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.sdk.transport.server import Call

_log = logging.getLogger(__name__)

# Threads for passes of other initiators. They never wait for each other, so a bound is safe.
_THREADS = 64
# Calls through gRPC that may work on a share before they reply.
_HOLDING = 4
# How long a report to the initiator of a pass is retried.
_REPORT_S = 5.0

Step: TypeAlias = Callable[[pb.StepParametersRequest], pb.StepParametersResponse]
"""Takes one phase of a step of parameters."""


@final
class AutogradServicer:
    """Serve this process's shares of the passes of other initiators.

    Args:
        contexts: The contexts of this process.
        worker: Name of this process.
        incarnation: Its incarnation.
        step: Takes one phase of a step of parameters here.
        openers: Checks that callers may work in a context.
    """

    def __init__(
        self,
        contexts: ContextRegistry,
        worker: str,
        incarnation: int,
        step: Step,
        openers: OpenerCheck | None = None,
    ) -> None:
        self._openers = openers or OpenerCheck()
        self._contexts = contexts
        self._worker = worker
        self._incarnation = incarnation
        self._step = step
        self._holding = threading.Semaphore(_HOLDING)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="backward")

    def send_gradients(
        self, request: Frame[pb.SendGradientsRequest], call: Call
    ) -> Frame[pb.SendGradientsResponse]:
        """Accept the gradients of a message that this process sent."""
        message = request.message
        head = message.backward_pass
        self._check_pass(head, call)
        ctx = self._contexts.find(head.context)
        if message.incarnation != self._incarnation:
            raise SendNotFound(f"{self._worker} has restarted", worker=self._worker)
        count = message.message
        sent = ctx.messages.find(count)
        call.caller.check_name(sent.receiver)
        arrays = own_arrays(request.arrays, call.borrowed)
        grads = unpack_gradients(message.gradients, arrays)
        try:
            sent.entry.check(grads)
        except (GradientError, ShapeError) as error:
            raise InvalidRequest(f"{sent.describe(self._worker)}: {error}") from None
        share = ctx.share(head, Deadline.after(head.remaining_ms / 1000))
        plan = message.plan if message.HasField("plan") else None
        if plan is not None:
            check_count("bytes of a plan", plan.ByteSize(), limits.MAX_PLAN_BYTES)
        if share.has_seen(count):
            return _response(share.earlier_answer(count, call.deadline))
        if not share.add_gradients(count, grads, plan, message.finished):
            return _response(())
        # A lane has a thread for each connection; gRPC's few threads must not all wait for others.
        if not call.borrowed and not self._holding.acquire(blocking=False):
            self._threads.submit(contextvars.Context().run, self._work, share)
            return _response(())
        try:
            return self._answer(share, sent)
        finally:
            if not call.borrowed:
                self._holding.release()

    def _answer(self, share: BackwardShare, sent: SendRecord) -> Frame[pb.SendGradientsResponse]:
        """Work on a share while its caller waits; the reply takes the caller's gradients."""
        try:
            returned = share.answer(sent.count, sent.receiver)
        except BaseException as error:
            self._fail(share, error)
            return _response(())
        return _response(returned, share.take_finished() if share.done else ())

    def _work(self, share: BackwardShare) -> None:
        if self._try(share) and share.has_report():
            self._report(share, finished=share.take_finished())

    def _try(self, share: BackwardShare) -> bool:
        """Work on a share; return whether it is done without an error."""
        try:
            share.work()
        except BaseException as error:
            self._fail(share, error)
            return False
        return share.done

    def _fail(self, share: BackwardShare, error: BaseException) -> None:
        """Abort a share, and report to the initiator unless it sent the abort."""
        known = isinstance(error, BackwardAborted) and share.error is not None
        share.abort(error)
        share.roll_back()
        if known and not isinstance(share.error, ContextReleased):
            return
        why = share.error if known and share.error is not None else error
        _log.warning("share of a backward failed", extra={"share": share.name, "error": str(why)})
        self._report(share, failure=to_failure(self._worker, why))

    def _report(
        self,
        share: BackwardShare,
        finished: list[pb.FinishedPart] | None = None,
        failure: pb.Failure | None = None,
    ) -> None:
        request = pb.ReportPartsRequest(
            backward_pass=share.stamped_head(), finished=finished, failure=failure
        )
        deadline = Deadline.after(min(_REPORT_S, max(share.deadline.remaining_s(), 1.0)))
        try:
            channel = share.ctx.agent.channel(share.head.initiator.name, deadline)
            channel.call(METHODS["ReportParts"], request, deadline)
        except ContextReleased:
            return  # the initiator has released it, too
        except MeshError as error:
            _log.warning(
                "no report of a backward", extra={"share": share.name, "error": error.message}
            )

    def report_parts(self, request: pb.ReportPartsRequest, call: Call) -> pb.ReportPartsResponse:
        """Accept reports on a pass that this process began."""
        self._openers.check(call.caller, request.backward_pass.context, call.deadline)
        share = self._contexts.find(request.backward_pass.context).find_share(request.backward_pass)
        if share is not None:
            share.add_finished(request.finished)
            if request.HasField("failure"):
                share.fail(from_failure(request.failure, share.name))
        return pb.ReportPartsResponse()

    def abort_pass(self, request: pb.AbortPassRequest, call: Call) -> pb.AbortPassResponse:
        """Abort a share."""
        self._check_initiator(request.backward_pass, call)
        try:
            share = self._contexts.find(request.backward_pass.context).find_share(
                request.backward_pass
            )
        except ContextReleased:
            return pb.AbortPassResponse()
        if share is None:
            return pb.AbortPassResponse()
        return pb.AbortPassResponse(waiting=share.abort(from_failure(request.failure, share.name)))

    def probe_pass(self, request: pb.ProbePassRequest, call: Call) -> pb.ProbePassResponse:
        """Return the state of a share."""
        self._check_initiator(request.backward_pass, call)
        try:
            ctx = self._contexts.find(request.backward_pass.context)
        except ContextReleased:
            return pb.ProbePassResponse(incarnation=self._incarnation)
        share = ctx.find_share(request.backward_pass)
        if share is None:
            return pb.ProbePassResponse(incarnation=self._incarnation)
        return pb.ProbePassResponse(
            incarnation=self._incarnation,
            finished=share.take_finished() if share.done else (),
            engaged=sorted(share.engaged),
        )

    def step_parameters(
        self, request: pb.StepParametersRequest, call: Call
    ) -> pb.StepParametersResponse:
        """Take one phase of a step of parameters."""
        if request.HasField("context"):
            self._openers.check(call.caller, request.context, call.deadline)
        return self._step(request)

    def _check_pass(self, head: pb.Pass, call: Call) -> None:
        """Check that a caller may work in the context of a pass, and that its initiator is real.

        Raises:
            Forbidden: It may not, or the initiator is unknown.
        """
        if call.caller.is_authenticated:
            self._openers.check(call.caller, head.context, call.deadline)
            initiator = (head.initiator.name, head.initiator.incarnation)
            if initiator != (head.context.worker, head.context.incarnation):
                self._openers.check_process(call.caller, initiator, call.deadline)

    def _check_initiator(self, head: pb.Pass, call: Call) -> None:
        """Check that a caller is the initiator of a pass.

        Raises:
            Forbidden: It is not.
        """
        call.caller.check_acts_for(head.initiator.name, head.initiator.incarnation)
        self._openers.check(call.caller, head.context, call.deadline)

    def close(self) -> None:
        """Start no more work; may be called twice."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _response(
    returned: Iterable[Returned], finished: Iterable[pb.FinishedPart] = ()
) -> Frame[pb.SendGradientsResponse]:
    response = pb.SendGradientsResponse(finished=finished)
    arrays: list[Array] = []
    for count, grads in returned:
        described, more = pack_gradients(grads)
        response.returned.add(message=count, gradients=described)
        arrays += more
    return Frame(response, arrays)

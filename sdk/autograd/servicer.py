"""The rpcs of a backward pass, as every process that takes part serves them."""

import contextvars
import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias, final

from gradmesh.engine.autograd import GradientError
from gradmesh.engine.backend import ShapeError
from gradmesh.protos.autograd.v1 import autograd_pb2 as pb
from gradmesh.protos.errors import (
    BackwardAborted,
    ContextReleased,
    InvalidRequest,
    MeshError,
    SendNotFound,
)
from gradmesh.protos.frame import Array, Frame
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
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.sdk.transport.server import Call

_log = logging.getLogger(__name__)

# Threads that work for passes others began. They never wait for each other, so a bound is safe.
_THREADS = 64
# Calls through gRPC that may work before they answer.
_HOLDING = 4
# How long the worker that began a pass is told that it failed.
_REPORT_S = 5.0

Step: TypeAlias = Callable[[pb.StepParametersRequest], pb.StepParametersResponse]
"""Takes one phase of a step of parameters."""


@final
class AutogradServicer:
    """Serves this process's parts of the passes that others began.

    Args:
        contexts: The contexts of this process.
        worker: Name of this process.
        incarnation: Its incarnation.
        step: Takes one phase of a step of parameters here.
    """

    def __init__(
        self, contexts: ContextRegistry, worker: str, incarnation: int, step: Step
    ) -> None:
        self._contexts = contexts
        self._worker = worker
        self._incarnation = incarnation
        self._step = step
        self._holding = threading.Semaphore(_HOLDING)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="backward")

    def send_gradients(
        self, request: Frame[pb.SendGradientsRequest], call: Call
    ) -> Frame[pb.SendGradientsResponse]:
        """Take the gradients of a message of ours."""
        message = request.message
        head = message.backward_pass
        ctx = self._contexts.find(head.context)
        if message.incarnation != self._incarnation:
            raise SendNotFound(f"{self._worker} has restarted", worker=self._worker)
        count = message.message
        sent = ctx.messages.find(count)
        arrays = own_arrays(request.arrays, call.borrowed)
        grads = unpack_gradients(message.gradients, arrays)
        try:
            sent.entry.check(grads)
        except (GradientError, ShapeError) as error:
            raise InvalidRequest(f"{sent.describe(self._worker)}: {error}") from None
        part = ctx.part(head, Deadline.after(head.remaining_ms / 1000))
        plan = message.plan if message.HasField("plan") else None
        if part.has_seen(count):
            return _response(part.former_answer(count))
        if not part.put(count, grads, plan, message.finished):
            return _response(())
        # Lanes have a thread a connection; gRPC's few threads must not all wait for others.
        if not call.borrowed and not self._holding.acquire(blocking=False):
            self._threads.submit(contextvars.Context().run, self._work, part)
            return _response(())
        try:
            return self._answer(part, sent)
        finally:
            if not call.borrowed:
                self._holding.release()

    def _answer(self, part: BackwardShare, sent: SendRecord) -> Frame[pb.SendGradientsResponse]:
        """Work for a part while its caller waits, who gets what belongs to it."""
        try:
            returned = part.answer(sent.count, sent.receiver)
        except BaseException as error:
            self._fail(part, error)
            return _response(())
        return _response(returned, part.take_finished() if part.over else ())

    def _work(self, part: BackwardShare) -> None:
        if self._try(part) and part.has_news():
            self._report(part, finished=part.take_finished())

    def _try(self, part: BackwardShare) -> bool:
        """Work for a part; return whether it is over, and well."""
        try:
            part.work()
        except BaseException as error:
            self._fail(part, error)
            return False
        return part.over

    def _fail(self, part: BackwardShare, error: BaseException) -> None:
        """End a part, and tell whoever began the pass, unless it was them who ended it."""
        known = isinstance(error, BackwardAborted) and part.error is not None
        part.give_up(error)
        part.clean_up()
        if known and not isinstance(part.error, ContextReleased):
            return
        why = part.error if known and part.error is not None else error
        _log.warning("part of a backward failed", extra={"part": part.name, "error": str(why)})
        self._report(part, failure=to_failure(self._worker, why))

    def _report(
        self,
        part: BackwardShare,
        finished: list[pb.FinishedPart] | None = None,
        failure: pb.Failure | None = None,
    ) -> None:
        request = pb.ReportPartsRequest(
            backward_pass=part.stamped_head(), finished=finished, failure=failure
        )
        deadline = Deadline.after(min(_REPORT_S, max(part.deadline.remaining_s(), 1.0)))
        try:
            channel = part.ctx.peers.channel(part.head.initiator.name, deadline)
            channel.call(METHODS["ReportParts"], request, deadline)
        except ContextReleased:
            return  # it is over for them, too
        except MeshError as error:
            _log.warning(
                "no report of a backward", extra={"part": part.name, "error": error.message}
            )

    def report_parts(self, request: pb.ReportPartsRequest, call: Call) -> pb.ReportPartsResponse:
        """Hear of parts of a pass that this process began."""
        part = self._contexts.find(request.backward_pass.context).find_part(request.backward_pass)
        if part is not None:
            part.hear(request.finished)
            if request.HasField("failure"):
                part.fail(from_failure(request.failure, part.name))
        return pb.ReportPartsResponse()

    def abort_pass(self, request: pb.AbortPassRequest, call: Call) -> pb.AbortPassResponse:
        """Drop a part."""
        try:
            part = self._contexts.find(request.backward_pass.context).find_part(
                request.backward_pass
            )
        except ContextReleased:
            return pb.AbortPassResponse()
        if part is None:
            return pb.AbortPassResponse()
        return pb.AbortPassResponse(waiting=part.give_up(from_failure(request.failure, part.name)))

    def probe_pass(self, request: pb.ProbePassRequest, call: Call) -> pb.ProbePassResponse:
        """Tell how a part is."""
        try:
            ctx = self._contexts.find(request.backward_pass.context)
        except ContextReleased:
            return pb.ProbePassResponse(incarnation=self._incarnation)
        part = ctx.find_part(request.backward_pass)
        if part is None:
            return pb.ProbePassResponse(incarnation=self._incarnation)
        return pb.ProbePassResponse(
            incarnation=self._incarnation,
            finished=part.take_finished() if part.over else (),
            engaged=sorted(part.engaged),
        )

    def step_parameters(
        self, request: pb.StepParametersRequest, call: Call
    ) -> pb.StepParametersResponse:
        """Take one phase of a step of parameters."""
        return self._step(request)

    def close(self) -> None:
        """Begin no more work; may be called twice."""
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

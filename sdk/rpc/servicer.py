"""The rpcs that every process serves."""

from collections.abc import Callable
from typing import Protocol, final

from gradmesh.protos import limits
from gradmesh.protos.common.v1 import context_pb2, value_pb2, worker_pb2
from gradmesh.protos.errors import InvalidRequest
from gradmesh.protos.frame import Array, Frame
from gradmesh.protos.limits import check_count
from gradmesh.protos.owner.v1 import owner_pb2 as pb
from gradmesh.protos.page import page_of
from gradmesh.protos.version import VERSION
from gradmesh.sdk.future import Future
from gradmesh.sdk.rpc.agent import Agent
from gradmesh.sdk.rpc.ids import WorkerId, fork_of, key_of, worker_of
from gradmesh.sdk.rpc.registry import Registry
from gradmesh.sdk.rpc.reply import DeferredReplies, Reply
from gradmesh.sdk.rpc.rref.owners import OwnedValue
from gradmesh.sdk.transport.channel import Channel
from gradmesh.sdk.transport.server import Call


class ContextHolder(Protocol):
    """The state that a process keeps for contexts of distributed autograd."""

    def release(self, context: context_pb2.ContextId) -> bool:
        """Release a context; return whether any state was kept for it."""

    def open_count(self) -> int:
        """Return how many contexts have state here."""


@final
class NoContexts:
    """A process without state for contexts."""

    def release(self, context: context_pb2.ContextId) -> bool:
        """Return False: there is no state."""
        return False

    def open_count(self) -> int:
        """Return 0."""
        return 0


@final
class SharedContexts:
    """The context state of several parts of a process.

    Args:
        holders: The parts.
    """

    def __init__(self, *holders: ContextHolder) -> None:
        self._holders = holders

    def release(self, context: context_pb2.ContextId) -> bool:
        """Release a context in all parts; return whether any state was kept for it."""
        released = [holder.release(context) for holder in self._holders]
        return any(released)

    def open_count(self) -> int:
        """Return how many contexts have state here, by the part that has most."""
        return max(holder.open_count() for holder in self._holders)


@final
class OwnerServicer:
    """Serves functions, owned values and contexts.

    Args:
        name: Name of this worker.
        role: e.g. "trainer".
        incarnation: Of this worker.
        functions: The functions that may be called.
        contexts: The state of contexts.
        agent: Runs functions and owns values; by default one without other workers.
    """

    def __init__(
        self,
        name: str,
        role: str,
        incarnation: int,
        functions: Registry,
        contexts: ContextHolder,
        agent: Agent | None = None,
    ) -> None:
        self._agent = agent = agent or Agent(name, incarnation, functions, Channel)
        self._me = agent.me
        self._role = role
        self._contexts = contexts
        self._executor = agent.executor
        self._rrefs = agent.rrefs
        self._deferred: DeferredReplies = agent.deferred

    def describe(self, request: pb.DescribeRequest, call: Call) -> pb.DescribeResponse:
        """Return name and role of this worker, and a page of its functions."""
        functions, token = page_of(
            self._agent.functions.names(), request.page_token, request.page_size, name=str
        )
        return pb.DescribeResponse(
            name=self._me.name,
            role=self._role,
            incarnation=self._me.incarnation,
            version=VERSION,
            functions=functions,
            next_page_token=token,
            open_contexts=self._contexts.open_count(),
            kept_refs=len(self._rrefs.owners),
        )

    def call(self, request: Frame[pb.CallRequest], call: Call) -> Frame[pb.CallResponse]:
        """Run a function and return its result."""
        message, executor = request.message, self._executor
        self._check_caller(message, call)
        return executor.answer(
            message, call, executor.when_made(request, call, executor.call), request.arrays
        ).called()

    def create_ref(self, request: Frame[pb.CreateRefRequest], call: Call) -> pb.CreateRefResponse:
        """Run a function and keep its result; once per reference."""
        message = request.message
        self._check(message.ref)
        self._check_caller(message, call)
        call.caller.check_acts_for(message.ref.creator, message.ref.incarnation)
        holder = worker_of(message.caller) if message.HasField("caller") else _creator(message.ref)

        def work(message: pb.CreateRefRequest, arrays: list[Array], call: Call) -> Future[Reply]:
            key, fork = key_of(message.ref), fork_of(message.ref)
            kept, first = self._rrefs.owners.begin(key, fork, holder)
            if first:
                self._make(kept, message, arrays, call)
            return kept.outcome.then(lambda _: Reply())

        executor = self._executor
        reply = executor.answer(
            message, call, executor.when_made(request, call, work), request.arrays
        )
        return pb.CreateRefResponse(deferred=reply.deferred)

    def _make(
        self, kept: OwnedValue, message: pb.CreateRefRequest, arrays: list[Array], call: Call
    ) -> None:
        try:
            outcome = self._executor.run(message, arrays, call)
        except BaseException as error:
            self._rrefs.owners.give_up(kept)
            kept.outcome.set_exception(error)
            raise
        assert isinstance(outcome, Future)
        outcome.add_done_callback(lambda done: _settle(kept, done))

    def fetch_ref(self, request: pb.FetchRefRequest, call: Call) -> Frame[pb.FetchRefResponse]:
        """Return an owned value."""
        executor = self._executor
        self._check_caller(request, call)

        def read(done: Future[object]) -> Reply:
            return executor.reply(done, request, f"{request.ref.creator}'s reference")

        return self._when_made(request, call, read).fetched()

    def describe_ref(self, request: pb.DescribeRefRequest, call: Call) -> pb.DescribeRefResponse:
        """Return the class of an owned value."""
        _check_named(request, call)

        def read(done: Future[object]) -> Reply:
            error = done.exception()
            if error is not None:
                return Reply(error=self._executor.error(error, "the value's function"))
            kind = self._agent.caller.local_type(done.result())
            return Reply(type=kind.name, methods=sorted(kind.methods))

        return self._when_made(request, call, read).described()

    def _when_made(
        self,
        request: pb.FetchRefRequest | pb.DescribeRefRequest,
        call: Call,
        read: Callable[[Future[object]], Reply],
    ) -> Reply:
        self._check(request.ref)
        outcome = self._rrefs.owners.find(key_of(request.ref)).outcome
        if outcome.done():
            return read(outcome)
        return self._executor.answer(request, call, lambda: outcome.then(read))

    def fork_ref(self, request: pb.ForkRefRequest, call: Call) -> pb.ForkRefResponse:
        """Register a reference that a user received from another user."""
        self._check(request.ref)
        call.caller.check_acts_for(request.caller.name, request.caller.incarnation)
        ref = request.ref
        self._rrefs.owners.fork(key_of(ref), fork_of(ref), worker_of(request.caller))
        return pb.ForkRefResponse()

    def accept_fork(self, request: pb.AcceptForkRequest, call: Call) -> pb.AcceptForkResponse:
        """Release a reference that was passed on."""
        self._rrefs.accept_fork(request.fork, _process(call))
        return pb.AcceptForkResponse()

    def delete_ref(self, request: pb.DeleteRefRequest, call: Call) -> pb.DeleteRefResponse:
        """Drop references."""
        check_count("references to delete", len(request.more), limits.MAX_IDS_AT_ONCE)
        refs = [request.ref, *request.more]
        for ref in refs:
            if ref.owner != self._me.name:
                raise self._other(ref)
        for ref in refs:
            if ref.owner_incarnation in (0, self._me.incarnation):
                self._rrefs.owners.delete(key_of(ref), fork_of(ref), _process(call))
        return pb.DeleteRefResponse()

    def deliver(self, request: Frame[pb.DeliverRequest], call: Call) -> pb.DeliverResponse:
        """Accept a deferred reply."""
        worker = request.message.worker
        call.caller.check_acts_for(worker.name, worker.incarnation)
        if call.borrowed:
            request = Frame(request.message, [array.copy() for array in request.arrays])
        return pb.DeliverResponse(wanted=self._agent.outstanding.deliver(request))

    def check_calls(self, request: pb.CheckCallsRequest, call: Call) -> pb.CheckCallsResponse:
        """Return which calls have no outstanding reply here."""
        call.caller.check_acts_for(request.caller.name, request.caller.incarnation)
        check_count("calls to check", len(request.call_ids), limits.DEFERRED.total)
        unknown = self._deferred.unknown(worker_of(request.caller), request.call_ids)
        return pb.CheckCallsResponse(unknown_ids=unknown)

    def release_context(
        self, request: pb.ReleaseContextRequest, call: Call
    ) -> pb.ReleaseContextResponse:
        """Release contexts."""
        check_count("contexts to release", len(request.others), limits.MAX_IDS_AT_ONCE)
        contexts = (request.context, *request.others)
        for id_ in contexts:
            self._agent.openers.check(call.caller, id_, call.deadline)
        released = [self._contexts.release(id_) for id_ in contexts]
        return pb.ReleaseContextResponse(found=any(released))

    def _check_caller(
        self, request: pb.CallRequest | pb.CreateRefRequest | pb.FetchRefRequest, call: Call
    ) -> None:
        """Check that the caller is the one that a request names, and may work in its context.

        Raises:
            Forbidden: It is another process, or may not.
        """
        if not call.caller.is_authenticated:
            return
        _check_named(request, call)
        if request.HasField("autograd"):
            self._agent.openers.check(call.caller, request.autograd.context, call.deadline)

    def _check(self, ref: value_pb2.RemoteRef) -> None:
        """Check that a reference is to a value of this worker.

        Raises:
            InvalidRequest: Another worker owns it.
            RefNotFound: A former process of this name owned it.
        """
        if ref.owner != self._me.name:
            raise self._other(ref)
        self._rrefs.check_incarnation(ref)

    def _other(self, ref: value_pb2.RemoteRef) -> InvalidRequest:
        return InvalidRequest(
            f"the reference belongs to {ref.owner!r}, not to {self._me.name!r}", owner=ref.owner
        )


def _process(call: Call) -> WorkerId | None:
    """Return the authenticated caller; None where callers are not authenticated."""
    caller = call.caller
    return WorkerId(caller.name, caller.incarnation) if caller.is_authenticated else None


def _check_named(
    request: pb.CallRequest | pb.CreateRefRequest | pb.FetchRefRequest | pb.DescribeRefRequest,
    call: Call,
) -> None:
    """Check that a request comes from the caller that it names, if it names one.

    Raises:
        Forbidden: It is another process.
    """
    if request.HasField("caller"):
        call.caller.check_acts_for(request.caller.name, request.caller.incarnation)


def _creator(ref: value_pb2.RemoteRef) -> WorkerId:
    return worker_of(worker_pb2.WorkerId(name=ref.creator, incarnation=ref.incarnation))


def _settle(kept: OwnedValue, done: Future[object]) -> None:
    error = done.exception()
    if error is not None:
        kept.outcome.set_exception(error)
    else:
        kept.outcome.set_result(done.result())

"""Calls that this worker makes: what is asked, of whom, and what becomes of the answer."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, final

from gradmesh.protos.errors import (
    ContextReleased,
    FunctionNotFound,
    InvalidRequest,
    MeshError,
    RefNotFound,
    WorkerNotFound,
)
from gradmesh.protos.frame import Frame
from gradmesh.protos.method import Body
from gradmesh.protos.owner.v1 import owner_pb2 as pb
from gradmesh.sdk.future import Future, failed
from gradmesh.sdk.rpc import current
from gradmesh.sdk.rpc.current import collect
from gradmesh.sdk.rpc.directory import To, WorkerDirectory
from gradmesh.sdk.rpc.ids import GlobalId, IdCounter, WorkerId, WorkerInfo
from gradmesh.sdk.rpc.outstanding import OutstandingCalls
from gradmesh.sdk.rpc.recording import recorder
from gradmesh.sdk.rpc.registry import Registry
from gradmesh.sdk.rpc.reply import Reply, error_from_proto
from gradmesh.sdk.rpc.rpc_call import ConnectionReaper, RpcCall
from gradmesh.sdk.rpc.rref.context import CallCleanup, IncomingRefs, OutgoingRefs, RRefContext
from gradmesh.sdk.rpc.rref.control import METHODS, RRefControl
from gradmesh.sdk.rpc.rref.rref import RemoteType, RRef
from gradmesh.sdk.rpc.rref.users import PendingCreation, UserRef
from gradmesh.sdk.rpc.values import ValueDecoder, ValueEncoder
from gradmesh.sdk.transport.deadline import Deadline

T = TypeVar("T")


@final
class RpcCaller:
    """Makes the calls of one worker.

    Args:
        info: The worker.
        functions: Names of functions and exceptions.
        directory: The other workers, and channels to them.
        outstanding: Calls without a reply.
        control: Sends messages about references.
        timeout_s: Of calls that set none.
    """

    def __init__(
        self,
        info: WorkerInfo,
        functions: Registry,
        directory: WorkerDirectory,
        outstanding: OutstandingCalls,
        control: RRefControl,
        timeout_s: float,
    ) -> None:
        self.name = info.name
        self.info = info
        self.me = WorkerId(info.name, info.incarnation)
        self._proto = self.me.proto()
        self.functions = functions
        self.directory = directory
        self.outstanding = outstanding
        self.rrefs = RRefContext(self.me, self, directory, control)
        self.timeout_s = timeout_s
        self.closed = False
        self._reaper = ConnectionReaper()

    def deadline(self, timeout_s: float | None) -> Deadline:
        """Return the deadline of a call that begins now."""
        return Deadline.within(timeout_s, self.timeout_s)

    def find(self, to: To, timeout_s: float | None = None) -> WorkerInfo:
        """Return a worker by name, rank or what is known of it.

        Raises:
            WorkerNotFound: There is none.
        """
        return self.directory.find(to, self.deadline(timeout_s))

    def call(
        self,
        to: To,
        function: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        timeout_s: float | None,
        target: RRef[Any] | None = None,
    ) -> Future[Any]:
        """Call a function, or a method of a kept value; return the future of its result.

        The future has what goes wrong on the way, too, whenever that is noticed.

        Raises:
            WorkerNotFound: There never was such a worker.
            InvalidRequest: An argument cannot be sent.
        """
        try:
            return Future(self.start(to, function, args, kwargs, timeout_s, target))
        except MeshError as error:
            if self._is_mistake(error, to):
                raise
            return failed(error)

    def _is_mistake(self, error: MeshError, to: To) -> bool:
        """Return whether a call failed by the caller's code, and not on the way to the worker."""
        if isinstance(error, WorkerNotFound):
            return not self.directory.was_there(to)
        if isinstance(error, RefNotFound):
            # One with a cause is a creation that failed, which may be noticed later just as well.
            return error.__cause__ is None
        return isinstance(error, InvalidRequest | FunctionNotFound | ContextReleased)

    def start(
        self,
        to: To,
        function: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        timeout_s: float | None,
        target: RRef[Any] | None = None,
    ) -> RpcCall[Any]:
        """Begin a call.

        Raises:
            WorkerNotFound: There is no such worker.
            InvalidRequest: An argument cannot be sent.
        """
        deadline = self.deadline(timeout_s)
        worker = to if type(to) is str else self.directory.find(to, deadline).name
        lending = OutgoingRefs(self.rrefs, self.directory.known(worker))
        call = self.outstanding.begin(
            worker,
            function,
            deadline,
            lambda reply: self._read(reply, worker, deadline),
            CallCleanup(lending, target),
        )
        request = pb.CallRequest(
            function=function,
            caller=self._proto,
            call_id=call.call_id,
            depth=current.depth.get(),
        )
        self._fill(call, lending, request, args, kwargs, target, "Call")
        return call

    def _fill(
        self,
        call: RpcCall[Any],
        lending: OutgoingRefs,
        request: pb.CallRequest | pb.CreateRefRequest,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        target: RRef[Any] | None,
        rpc: str,
    ) -> None:
        """Put the arguments into a request and send it."""
        outgoing = ValueEncoder(lending.lend)
        try:
            for arg in args:
                request.args.append(outgoing.add(arg))
            for name, value in kwargs.items():
                request.kwargs[name].CopyFrom(outgoing.add(value))
            if target is not None:
                request.target.CopyFrom(lending.target(target))
            self._note(request, outgoing, call.worker)
            self._send(call, rpc, Frame(request, outgoing.arrays))
        except BaseException:
            lending.undo()
            call.end()
            raise

    def _note(
        self,
        request: pb.CallRequest | pb.CreateRefRequest | pb.FetchRefRequest,
        outgoing: ValueEncoder,
        worker: str,
    ) -> None:
        note = recorder().outgoing(outgoing.tensors, worker, forced=True)
        if note is not None:
            request.autograd.CopyFrom(note)

    def _send(self, call: RpcCall[Any], rpc: str, request: Body) -> None:
        channel = self.directory.channel(call.worker, call.deadline)
        self._reaper.free_connections(call.worker)
        call.sent(channel.start(METHODS[rpc], request, call.deadline))
        self._reaper.add(call)

    def _read(self, reply: Reply, worker: str, deadline: Deadline) -> Any:
        """Return the result in an answer.

        Raises:
            Exception: What the function raised.
        """
        if reply.error is not None:
            raise error_from_proto(reply.error, self.functions)
        if reply.result is None:
            return None
        borrowing = IncomingRefs(self.rrefs, is_reply=True)
        incoming = ValueDecoder(reply.arrays, False, lambda ref: borrowing.take(ref, deadline))
        with borrowing:
            result = incoming.read(reply.result)
        if reply.note is not None:
            recorder().incoming(reply.note, incoming.tensors, worker)
        return result

    def create(
        self,
        to: To,
        function: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        timeout_s: float | None,
        target: RRef[Any] | None = None,
    ) -> RRef[Any]:
        """Call a function whose result stays with the worker; return a reference to it at once."""
        deadline = self.deadline(timeout_s)
        owner = self.directory.find(to, deadline)
        key = self.rrefs.keys.new()
        rref: RRef[Any]
        created: Future[None]
        if owner.name == self.name:
            kept = self.rrefs.owners.reserve(key)
            rref, fork, created = RRef._of_owner(self, kept), key, Future()
        else:
            fork = self.rrefs.keys.new()
            used = UserRef(WorkerId(owner.name, owner.incarnation), key, fork)
            rref, created = RRef._of_user(self, used), used.confirmed
        request = pb.CreateRefRequest(
            function=function, caller=self._proto, depth=current.depth.get()
        )
        request.ref.CopyFrom(_ref(WorkerId(owner.name, owner.incarnation), key, fork))
        try:
            creation = self._create(request, owner, args, kwargs, deadline, target, created)
        except BaseException:
            if owner.name == self.name:
                self.rrefs.owners.give_up(kept)
            raise
        if owner.name == self.name:
            created.add_done_callback(lambda done: self._created_here(done, key))
        else:
            used.creation = creation
            self.rrefs.users.track(rref, used)
        return rref

    def _create(
        self,
        request: pb.CreateRefRequest,
        owner: WorkerInfo,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        deadline: Deadline,
        target: RRef[Any] | None,
        created: Future[None],
    ) -> PendingCreation:
        """Send a creation, which settles `created` when it has ended."""
        lending = OutgoingRefs(self.rrefs, WorkerId(owner.name, owner.incarnation))
        call = self.outstanding.begin(
            owner.name,
            request.function,
            deadline,
            lambda reply: self._read(reply, owner.name, deadline),
            CallCleanup(lending, target),
        )
        request.call_id = call.call_id
        answer: Future[None]
        try:
            self._fill(call, lending, request, args, kwargs, target, "CreateRef")
            answer = Future(call)
        except MeshError as error:
            if self._is_mistake(error, owner):
                raise
            answer = failed(error)
        creation = PendingCreation(collect(answer), created, deadline)
        self.rrefs.control.later(creation.finish)
        return creation

    def _created_here(self, done: Future[None], key: GlobalId) -> None:
        """Let go of a value that this worker made for itself: its reference keeps it."""
        owners = self.rrefs.owners
        error = done.exception()
        try:
            kept = owners.find(key)
        except RefNotFound:
            return
        if error is not None and not kept.outcome.done():
            kept.outcome.set_exception(error)
        owners.take_back(key, key)

    def await_creation(self, used: UserRef, timeout_s: float | None) -> None:
        """Wait for the creation of a value that this worker asked for, if there is time."""
        creation, used.creation = used.creation, None
        if creation is not None:
            creation.await_answer(self.deadline(timeout_s))

    def fetch(self, used: UserRef, timeout_s: float | None) -> Future[Any]:
        """Ask the owner for a copy of a value."""
        deadline = self.deadline(timeout_s)
        worker = used.owner.name
        call = self._begin_use(
            used, "to_here", deadline, lambda reply: self._read(reply, worker, deadline)
        )
        request = pb.FetchRefRequest(ref=used.proto(), caller=self._proto, call_id=call.call_id)
        return self._ask(call, request, "FetchRef")

    def describe_ref(self, used: UserRef, timeout_s: float | None) -> Future[RemoteType]:
        """Ask the owner for the class of a value."""
        deadline = self.deadline(timeout_s)

        def read(reply: Reply) -> RemoteType:
            if reply.error is not None:
                raise error_from_proto(reply.error, self.functions)
            return RemoteType(reply.type, frozenset(reply.methods))

        call = self._begin_use(used, "the class of a value", deadline, read)
        request = pb.DescribeRefRequest(ref=used.proto(), caller=self._proto, call_id=call.call_id)
        return self._ask(call, request, "DescribeRef")

    def _begin_use(
        self, used: UserRef, what: str, deadline: Deadline, read: Callable[[Reply], T]
    ) -> RpcCall[T]:
        """Begin a question about a value; its reference is not deleted before the answer is there.

        The call does not keep the RRef itself, which keeps the future of the question: an unread
        future would be kept by its own call, and never be freed.
        """
        users = self.rrefs.users
        call = self.outstanding.begin(
            used.owner.name, what, deadline, read, lambda answered: users.end_use(used)
        )
        # Afterwards: a call that could not begin does not end either.
        users.begin_use(used)
        return call

    def _ask(
        self, call: RpcCall[T], request: pb.FetchRefRequest | pb.DescribeRefRequest, rpc: str
    ) -> Future[T]:
        """Send a question about a value; return the future of the answer."""
        try:
            if isinstance(request, pb.FetchRefRequest):
                self._note(request, ValueEncoder(), call.worker)
            self._send(call, rpc, request)
        except BaseException as error:
            call.end()
            if isinstance(error, MeshError) and not self._is_mistake(error, call.worker):
                return failed(error)
            raise
        return Future(call)

    def local_type(self, value: object) -> RemoteType:
        """Return what a value of this worker is."""
        return RemoteType(type(value).__name__, self.functions.methods(type(value)))

    def info_of(self, worker: WorkerId) -> WorkerInfo:
        """Return who a worker is, as far as this one has heard."""
        if worker.name == self.name:
            return self.info
        return self.directory._known(worker.name) or WorkerInfo(
            worker.name, None, worker.incarnation
        )

    def new_keys(self) -> IdCounter:
        """Return this worker's count of names."""
        return self.rrefs.keys


def _ref(owner: WorkerId, key: GlobalId, fork: GlobalId) -> Any:
    return UserRef(owner, key, fork).proto()

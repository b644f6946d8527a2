"""Execution of registered functions for callers.

A call runs on the thread that received it while enough of those are free. Otherwise it moves to a
thread of our own and its reply is deferred, so that one receiving thread is always left for the
small messages that calls in progress need. A call that other calls wait for is never queued.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, final

import numpy as np

from gradmesh.protos.common.v1.autograd_pb2 import AutogradNote
from gradmesh.protos.errors import InvalidRequest, LimitExceeded, MeshError, NestedTooDeep
from gradmesh.protos.frame import Array, Frame
from gradmesh.protos.owner.v1 import owner_pb2 as pb
from gradmesh.sdk.future import Future
from gradmesh.sdk.rpc import current
from gradmesh.sdk.rpc.ids import WorkerId, key_of, worker_of
from gradmesh.sdk.rpc.recording import recorder
from gradmesh.sdk.rpc.registry import Registry, is_async
from gradmesh.sdk.rpc.reply import DEFERRED, DeferredReplies, Reply, caller_of, error_to_proto
from gradmesh.sdk.rpc.rref.context import IncomingRefs, OutgoingRefs, RRefContext
from gradmesh.sdk.rpc.threads import ThreadPool
from gradmesh.sdk.rpc.values import ValueDecoder, ValueEncoder
from gradmesh.sdk.transport.call import Call, set_caller
from gradmesh.sdk.transport.deadline import Deadline

if TYPE_CHECKING:
    from gradmesh.sdk.rpc.agent import Agent

MAX_DEPTH = 128
"""Maximum nesting depth of calls that wait for one another."""

R = TypeVar("R", pb.CallRequest, pb.CreateRefRequest)
Request: TypeAlias = pb.CallRequest | pb.CreateRefRequest
Asking: TypeAlias = (
    pb.CallRequest | pb.CreateRefRequest | pb.FetchRefRequest | pb.DescribeRefRequest
)


@final
class CallExecutor:
    """Runs functions for callers.

    Args:
        me: This worker.
        functions: What may be called.
        rrefs: References in messages.
        threads: Runs calls that leave the thread that received them.
        deferred: The deferred replies.
        inline: How many calls may run on gRPC's own threads.
        agent: The agent that the functions use for calls of their own.
    """

    def __init__(
        self,
        me: WorkerId,
        functions: Registry,
        rrefs: RRefContext,
        threads: ThreadPool,
        deferred: DeferredReplies,
        inline: int,
        agent: "Agent",
    ) -> None:
        self._me = me
        self._functions = functions
        self._rrefs = rrefs
        self._threads = threads
        self._deferred = deferred
        self._inline = threading.Semaphore(inline)
        # Calls through gRPC whose threads wait for a reply that cannot be deferred.
        self._waiting = threading.Semaphore(inline)
        self._agent = agent
        self._lock = threading.Lock()  # guards active and served
        self._changed = threading.Condition(self._lock)
        self.active = 0
        self.served = 0

    def answer(
        self,
        message: Asking,
        call: Call,
        work: Callable[[], Reply | Future[Reply]],
        arrays: Sequence[Array] = (),
    ) -> Reply:
        """Run work for a caller; return the reply, or one that says that the reply is deferred.

        Args:
            message: The request.
            call: The call.
            work: What to run.
            arrays: The arrays of the request, which are kept while the reply is deferred.

        Raises:
            MeshError: The work was refused.
        """
        caller = caller_of(message) if self._agent.joined else None
        # Before the work begins: a refused call has no effect.
        if caller is not None and not self._deferred.are_few:
            self._deferred.check_room(caller, _size(message, arrays))
        done: Reply | Future[Reply]
        # A lane has one thread per connection, so its thread may block.
        if call.borrowed or caller is None:
            done = work()
        elif self._inline.acquire(blocking=False):
            try:
                done = work()
            finally:
                self._inline.release()
        else:
            done = self._elsewhere(work, getattr(message, "depth", 0))
        if isinstance(done, Reply):
            return done
        if not done.done():
            if caller is not None:
                size = _size(message, arrays)
                self._deferred.defer(caller, message.call_id, done, self._failed, size)
                return DEFERRED
            self._wait(done, call)
        return done.result()

    def _wait(self, done: Future[Reply], call: Call) -> None:
        """Wait for a reply on the thread of the call, until its deadline.

        Raises:
            LimitExceeded: Too many threads of gRPC wait already.
        """
        # A lane has a thread for each connection.
        if not call.borrowed and not self._waiting.acquire(blocking=False):
            raise LimitExceeded(
                f"too many calls wait on {self._me.name} for replies that cannot be deferred; "
                "name the caller in the request, or wait for fewer at once",
                limit="waits",
            )
        try:
            done.exception(max(call.deadline.remaining_s(), 1e-3))
        finally:
            if not call.borrowed:
                self._waiting.release()

    def when_made(
        self,
        request: Frame[R],
        call: Call,
        work: Callable[[R, list[Array], Call], Reply | Future[Reply]],
    ) -> Callable[[], Reply | Future[Reply]]:
        """Return work on a request that starts once the target object exists.

        No thread blocks on that: the object's creation might need this very thread.
        """
        message, arrays = request.message, request.arrays
        made = self._awaited(message)
        if made is None:
            return lambda: work(message, arrays, call)
        if call.borrowed:
            arrays = [array.copy() for array in arrays]
            call = replace(call, empty=np.empty, borrowed=False)

        def later() -> Future[Reply]:
            reply: Future[Reply] = Future()
            task = self._task(lambda: work(message, arrays, call), reply)

            def begin(_: Future[Any]) -> None:
                try:
                    self._threads.run(task)
                except MeshError as error:
                    reply.set_exception(error)

            made.add_done_callback(begin)
            return reply

        return later

    def _awaited(self, message: Request) -> Future[Any] | None:
        """Return the future of the object whose method is called, if it is not created yet."""
        if not message.HasField("target") or message.target.owner != self._me.name:
            return None
        self._rrefs.check_incarnation(message.target)
        outcome = self._rrefs.owners.find(key_of(message.target)).outcome
        return None if outcome.done() else outcome

    def _elsewhere(self, work: Callable[[], Reply | Future[Reply]], depth: int) -> Future[Reply]:
        """Run the work on another thread; not queued if another call waits for it."""
        later: Future[Reply] = Future()
        task = self._task(work, later)
        if depth:
            self._threads.run(task)
        else:
            self._threads.enqueue(task)
        return later

    def _task(
        self, work: Callable[[], Reply | Future[Reply]], later: Future[Reply]
    ) -> Callable[[], None]:
        """Return a task that completes a future with the reply of the work."""

        def task() -> None:
            try:
                done = work()
            except Exception as error:
                later.set_exception(error)
            else:
                if isinstance(done, Reply):
                    later.set_result(done)
                else:
                    done.add_done_callback(lambda done: _copy(done, later))

        return task

    def _failed(self, error: BaseException) -> Reply:
        return Reply(error=error_to_proto(error, "the call", self._me.name, self._functions))

    def call(
        self, message: pb.CallRequest, arrays: list[Array], call: Call
    ) -> Reply | Future[Reply]:
        """Run the function of a request; return its reply, or the future of it."""
        outcome = self.run(message, arrays, call)
        if isinstance(outcome, Future):
            return outcome.then(lambda done: self.reply(done, message, message.function))
        return outcome

    def run(self, message: Request, arrays: list[Array], call: Call) -> Reply | Future[Any]:
        """Run the function of a request.

        Returns:
            The reply; for async_execution and for values that stay on this worker, the future of
            what the function returned or raised.

        Raises:
            MeshError: The request was refused; the function did not run.
        """
        if message.depth > MAX_DEPTH:
            raise NestedTooDeep(
                f"{message.function} on {self._me.name}: {message.depth} calls wait for one "
                f"another, at most {MAX_DEPTH}",
                function=message.function,
                depth=message.depth,
            )
        borrowing = IncomingRefs(self._rrefs, is_reply=False)
        incoming = ValueDecoder(
            arrays, call.borrowed, lambda ref: borrowing.take(ref, call.deadline)
        )
        with borrowing:
            args, kwargs = incoming.read_all(message.args, message.kwargs)
            target = borrowing.take(message.target, call.deadline) if _has_target(message) else None
        name = message.function
        if target is None:
            function = self._functions.find(name, self._me.name)
        else:
            try:
                value = target.to_here(max(call.deadline.remaining_s(), 1e-3))
            except MeshError:
                raise
            except Exception as error:  # of the function that should have made the object
                return self._failure(error, message)
            function = self._functions.method(value, name, self._me.name)
        note = message.autograd if message.HasField("autograd") else None
        sender = message.caller.name
        if call.caller.is_authenticated:
            set_caller(call.caller)  # for functions that act for their caller
        before = current.here.set(self._agent), current.depth.set(message.depth + 1)
        with self._lock:
            self.active += 1
            self.served += 1
        try:
            with handling(note):
                if note is not None:
                    recorder().incoming(note, incoming.tensors, sender)
                return self._invoke(function, name, args, kwargs, message)
        finally:
            with self._lock:
                self.active -= 1
                if not self.active:
                    self._changed.notify_all()
            current.here.reset(before[0])
            current.depth.reset(before[1])

    def _invoke(
        self,
        function: Callable[..., Any],
        name: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        message: Request,
    ) -> Reply | Future[Any]:
        try:
            result = function(*args, **kwargs)
            if is_async(function):
                if not isinstance(result, Future):
                    raise RuntimeError(
                        f"{name} is marked async_execution and must return a Future, not a "
                        f"{type(result).__name__}"
                    )
                return result
        # Errors of the catalogue, too: raised here, they would signal the caller's retry loop that
        # this worker did not act.
        except (Exception, SystemExit) as error:
            return self._failure(error, message)
        if not isinstance(message, pb.CreateRefRequest):
            return self._encode(result, message, name)
        outcome: Future[Any] = Future()
        outcome.set_result(result)
        return outcome

    def _failure(self, error: BaseException, message: Request) -> Reply | Future[Any]:
        """Return the outcome of a function that raised, or whose object could not be made."""
        if not isinstance(message, pb.CreateRefRequest):
            return Reply(error=self.error(error, message.function))
        outcome: Future[Any] = Future()
        outcome.set_exception(error)
        return outcome

    def reply(
        self, done: Future[Any], message: pb.CallRequest | pb.FetchRefRequest, name: str
    ) -> Reply:
        """Return the reply for a completed result."""
        error = done.exception()
        if error is not None:
            return Reply(error=self.error(error, name))
        note = message.autograd if message.HasField("autograd") else None
        with handling(note):
            return self._encode(done.result(), message, name)

    def _encode(self, result: Any, message: Request | pb.FetchRefRequest, name: str) -> Reply:
        caller = worker_of(message.caller)
        lending = OutgoingRefs(self._rrefs, caller)
        outgoing = ValueEncoder(lending.lend)
        try:
            value = outgoing.add(result)
            note = None
            if message.HasField("autograd"):
                note = recorder().outgoing(outgoing.tensors, caller.name, forced=False)
        except MeshError as error:
            lending.undo()
            if isinstance(error, InvalidRequest):
                error = InvalidRequest(f"{name} returned what cannot be sent: {error.message}")
            return Reply(error=self.error(error, name))
        return Reply(value, outgoing.arrays, note)

    def wait_idle(self, deadline: Deadline) -> bool:
        """Wait until no function runs."""
        with self._lock:
            return self._changed.wait_for(lambda: not self.active, deadline.remaining_s())

    def error(self, error: BaseException, name: str) -> pb.RemoteError:
        """Return the error that the caller of a failed function receives."""
        return error_to_proto(error, name, self._me.name, self._functions)


def handling(note: AutogradNote | None) -> AbstractContextManager[object]:
    """Work in the context of a request, if it has one."""
    return nullcontext() if note is None else recorder().handling(note)


def _size(message: Asking, arrays: Sequence[Array]) -> int:
    return message.ByteSize() + sum(array.nbytes for array in arrays)


def _has_target(message: Request) -> bool:
    return message.HasField("target")


def _copy(done: Future[Reply], later: Future[Reply]) -> None:
    error = done.exception()
    if error is not None:
        later.set_exception(error)
    else:
        later.set_result(done.result())

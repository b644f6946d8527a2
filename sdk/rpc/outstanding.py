"""The calls of this worker that have no reply yet."""

import functools
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, final

from gradmesh.protos.errors import (
    DeadlineExceeded,
    MeshError,
    Overloaded,
    TicketRejected,
    Unreachable,
)
from gradmesh.protos.frame import Frame
from gradmesh.protos.owner.v1 import owner_pb2 as pb
from gradmesh.sdk.rpc.ids import CallIds, WorkerId
from gradmesh.sdk.rpc.reply import Reply, reply_of
from gradmesh.sdk.rpc.rpc_call import CompletionTask, RpcCall
from gradmesh.sdk.rpc.rref.control import METHODS, WorkerChannels
from gradmesh.sdk.rpc.threads import Task
from gradmesh.sdk.transport.deadline import Deadline

T = TypeVar("T")

# Interval at which workers are asked whether they still track the deferred calls.
_CHECK_S = 1.0
_CHECK_TIMEOUT_S = 5.0

# At shutdown: interval of the search for calls that no thread reads, and the number of threads that
# read their replies.
_KEEP_S = 0.05
_KEEPERS = 16

# Number of calls that an error message lists.
_NAMED = 5


class TaskRunner(Protocol):
    """Runs tasks on threads."""

    def run(self, task: Task) -> None:
        """Run a task on a thread of its own."""


@final
class OutstandingCalls:
    """All calls of this worker that are in progress.

    Args:
        me: The worker.
        directory: Channels to the other workers.
        threads: For callbacks.
    """

    def __init__(self, me: WorkerId, directory: WorkerChannels, threads: TaskRunner) -> None:
        self._me = me
        self._directory = directory
        self.run = threads.run
        self.suspect = directory.suspect
        # Guards all below. Reentrant: the garbage collector may abandon a call while the lock is
        # held.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._count = 0
        self._ids = CallIds()
        self._calls: dict[int, RpcCall[Any]] = {}
        self._deferred: dict[int, RpcCall[Any]] = {}
        self._reactions: set[CompletionTask] = set()
        self._keepers = 0
        self._watcher: threading.Thread | None = None
        self._closed = False

    def begin(
        self,
        worker: str,
        what: str,
        deadline: Deadline,
        read: Callable[[Reply], T],
        over: Callable[[bool], None],
    ) -> RpcCall[T]:
        """Register a call that is about to be sent."""
        with self._lock:
            if self._closed:
                raise Unreachable("rpc was shut down; no call can be made", worker=worker)
            self._count += 1
            call = RpcCall(self, self._ids.next(), worker, what, deadline, read, over)
            self._calls[call.call_id] = call
        return call

    def remove(self, call: RpcCall[Any]) -> None:
        """Remove a call that has ended."""
        with self._lock:
            self._calls.pop(call.call_id, None)
            if self._deferred:
                self._deferred.pop(call.call_id, None)
            if not self._calls:
                self._changed.notify_all()

    def expect(self, ready: Callable[[], None]) -> CompletionTask:
        """Return a task that calls `ready`; `wait_idle` waits for it from now on."""
        reaction = CompletionTask(ready, self._ended)
        with self._lock:
            self._reactions.add(reaction)
        return reaction

    def _ended(self, reaction: CompletionTask) -> None:
        with self._lock:
            self._reactions.discard(reaction)
            self._changed.notify_all()

    def start(self, task: Task, reaction: CompletionTask) -> None:
        """Run a task that schedules a reaction on a thread of its own.

        Raises:
            Overloaded: There are too many threads; `wait_idle` no longer waits for the reaction.
        """
        try:
            self.run(task)
        except BaseException:
            self._ended(reaction)
            raise

    def react(self, reaction: CompletionTask) -> None:
        """Run a reaction on a thread of its own; on the calling thread if there are too many."""
        try:
            self.run(reaction)
        except Overloaded:
            reaction()

    def deliver(self, frame: Frame[pb.DeliverRequest]) -> bool:
        """Accept a deferred reply; return whether a call still waits for it.

        Only the worker that was called may reply.
        """
        message = frame.message
        call = self._calls.get(message.call_id)
        if call is None or message.caller.incarnation != self._me.incarnation:
            return False
        if message.worker.name != call.worker:
            return False
        call.deliver(reply_of(frame))
        return True

    def watch(self, call: RpcCall[Any]) -> None:
        """Monitor a call whose reply is deferred."""
        with self._lock:
            if call.call_id not in self._calls:
                return
            self._deferred[call.call_id] = call
            self._changed.notify_all()
            if self._watcher is None and not self._closed:
                self._watcher = threading.Thread(target=self._watch, name="rpc-watch", daemon=True)
                self._watcher.start()

    def _watch(self) -> None:
        missed: set[int] = set()
        while True:
            with self._lock:
                self._changed.wait_for(lambda: self._deferred or self._closed)
                if self._closed:
                    return
                soonest = min(call.deadline.remaining_s() for call in self._deferred.values())
                self._changed.wait_for(lambda: self._closed, min(soonest + 0.01, _CHECK_S))
                deferred = list(self._deferred.values())
            by_worker: dict[str, list[RpcCall[Any]]] = defaultdict(list)
            for call in deferred:
                if call.deadline.passed:
                    call.fail(call.late())
                else:
                    by_worker[call.worker].append(call)
            now_missed: set[int] = set()
            for worker, calls in by_worker.items():
                now_missed |= self._check(worker, calls, missed)
            missed = now_missed

    def _check(self, worker: str, calls: list[RpcCall[Any]], missed: set[int]) -> set[int]:
        """Ask a worker whether it still tracks our calls; return those it has lost."""
        request = pb.CheckCallsRequest(
            caller=self._me.proto(), call_ids=[call.call_id for call in calls]
        )
        deadline = Deadline.after(_CHECK_TIMEOUT_S)
        try:
            channel = self._directory.channel(worker, deadline)
            unknown = set(channel.call(METHODS["CheckCalls"], request, deadline).unknown_ids)
        except (DeadlineExceeded, TicketRejected):
            return set()  # busy, or the coordinator is; the next round decides
        except MeshError as error:
            for call in calls:
                call.fail(
                    Unreachable(
                        f"{call.what}: {worker} owes the answer and is gone: {error.message}",
                        worker=worker,
                    )
                )
            return set()
        for call in calls:
            # Twice in a row, as its delivery may be on the way.
            if call.call_id in unknown & missed:
                call.fail(Unreachable(f"{call.what}: {worker} has lost the call", worker=worker))
        return unknown

    def drain(self, deadline: Deadline) -> bool:
        """Wait until every call has a reply, whether or not its result is ever read.

        Results stay in their futures, also those of calls that begin meanwhile, unless their
        callers read them at once, as most do.
        """
        while True:
            self._keep_all()
            if self.wait_idle(Deadline.after(min(_KEEP_S, deadline.remaining_s()))):
                return True
            if deadline.passed:
                return False

    def _keep_all(self) -> None:
        """Read the replies that no thread waits for."""
        with self._lock:
            calls = [call for call in self._calls.values() if not call.is_kept]
            answered = deque(call for call in calls if call.is_answered)
            more = min(len(answered), _KEEPERS - self._keepers)
        # Not on this thread, which has a deadline: a reply may contain references whose owners must
        # be notified first, and an owner may be slow.
        for _ in range(more):
            try:
                self.run(functools.partial(self._keep_answered, answered))
            except Overloaded:
                break
        for call in calls:
            if not call.is_answered:
                call.keep()

    def _keep_answered(self, calls: deque[RpcCall[Any]]) -> None:
        with self._lock:
            self._keepers += 1
        try:
            while True:
                calls.popleft().keep()
        except IndexError:
            return
        finally:
            with self._lock:
                self._keepers -= 1

    def wait_idle(self, deadline: Deadline) -> bool:
        """Wait until every call has ended: its reply was read and its callbacks have run."""
        me = threading.get_ident()  # a callback may end the worker

        def idle() -> bool:
            # Iterate over a copy: the garbage collector may add entries during the loop.
            return not self._calls and all(r.thread == me for r in self._reactions.copy())

        with self._lock:
            return self._changed.wait_for(idle, deadline.remaining_s())

    def under_way(self) -> str:
        """Describe what `drain` waits for, for error messages."""
        with self._lock:
            calls = [f"{call.what} on {call.worker}" for call in self._calls.values()]
        if not calls:
            return "callbacks of futures have not ended; see what they wait for"
        more = ", ..." if len(calls) > _NAMED else ""
        return (
            f"{len(calls)} calls have no answer yet ({', '.join(calls[:_NAMED])}{more}); allow more"
            " time, or see what they wait for"
        )

    @property
    def made(self) -> int:
        """How many calls were made so far."""
        return self._count

    def __len__(self) -> int:
        return len(self._calls)

    def close(self) -> None:
        """Fail the remaining calls; may be called twice."""
        with self._lock:
            self._closed = True
            left = list(self._calls.values())
            self._changed.notify_all()
            watcher, self._watcher = self._watcher, None
        for call in left:
            call.fail(Unreachable(f"{call.what}: rpc was shut down", worker=call.worker))
        if watcher is not None and watcher is not threading.current_thread():
            watcher.join(_CHECK_TIMEOUT_S + 1)

"""The calls that this worker has made and that are not answered yet."""

import logging
import socket
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar, final

from gradmesh.protos.errors import DeadlineExceeded, GradmeshError, Unreachable
from gradmesh.protos.frame import Frame
from gradmesh.protos.owner.v1 import owner_pb2 as pb
from gradmesh.sdk.rpc.reply import Reply, reply_of
from gradmesh.sdk.rpc.threads import Task
from gradmesh.sdk.rref.control import METHODS, KnowsPeers
from gradmesh.sdk.rref.ids import Worker
from gradmesh.sdk.transport.channel import Pending
from gradmesh.sdk.transport.deadline import Deadline

_log = logging.getLogger(__name__)

T = TypeVar("T")

# How often workers that owe us an answer are asked whether they still know.
_CHECK_S = 1.0
_CHECK_TIMEOUT_S = 5.0


class Runs(Protocol):
    """Whoever has threads."""

    def run(self, task: Task) -> None:
        """Run a task on a thread of its own."""


@final
class RpcCall(Generic[T]):
    """One call under way; the source of its Future.

    Args:
        outstanding: All calls of this worker.
        call_id: Their count.
        worker: Who is asked.
        what: What of it, for messages.
        deadline: When to stop waiting.
        read: Makes the result of the answer, or raises what it says.
        over: Called once when the call has ended; with whether it was answered.
    """

    __slots__ = (
        "__weakref__",
        "_arrived",
        "_error",
        "_lock",
        "_outstanding",
        "_over",
        "_pending",
        "_read",
        "_ready",
        "_reply",
        "_turn",
        "call_id",
        "deadline",
        "deferred",
        "what",
        "worker",
    )

    def __init__(
        self,
        outstanding: "Outstanding",
        call_id: int,
        worker: str,
        what: str,
        deadline: Deadline,
        read: Callable[[Reply], T],
        over: Callable[[bool], None],
    ) -> None:
        self.call_id = call_id
        self.worker = worker
        self.what = what
        self.deadline = deadline
        self.deferred = False
        self._outstanding = outstanding
        self._read = read
        self._over: Callable[[bool], None] | None = over
        self._pending: Pending | None = None
        self._turn = threading.Lock()  # held by the one that waits for the response
        self._lock = threading.Lock()  # guards _reply, _error, _arrived and _ready
        self._reply: Reply | None = None
        self._error: Exception | None = None
        self._arrived: threading.Event | None = None
        self._ready: Callable[[], None] | None = None

    def sent(self, pending: Pending) -> None:
        """Note that the request is on its way."""
        self._pending = pending

    @property
    def doorbell(self) -> socket.socket | None:
        """What can be read when the response has come, where the call occupies a socket."""
        pending = self._pending
        return None if pending is None else pending.doorbell

    def take(self) -> None:
        """Take a response that is there, so that its connection is free."""
        self._respond()

    def finish(self) -> T:
        """Wait for the answer; return what it says or raise it."""
        try:
            self._respond()
            if self._reply is None and self._error is None:
                self._await_delivery()
            if self._error is not None:
                raise self._error
            assert self._reply is not None
            self._end(True)
            return self._read(self._reply)
        finally:
            self._end(False)

    def _end(self, answered: bool) -> None:
        over, self._over = self._over, None
        if over is not None:
            self._outstanding.forget(self)
            over(answered)

    def _respond(self) -> None:
        """Wait for the response, which may say that the answer comes later."""
        with self._turn:
            pending, self._pending = self._pending, None
            if pending is None:
                return
            try:
                reply = reply_of(pending.result())
            except Exception as error:
                if isinstance(error, Unreachable):
                    self._outstanding.suspect(self.worker)
                with self._lock:
                    if self._reply is None:
                        self._error = error
                return
            if not reply.deferred:
                with self._lock:
                    self._reply = self._reply or reply
                return
            with self._lock:
                self.deferred = True
                self._arrived = threading.Event()
        self._outstanding.watch(self)

    def _await_delivery(self) -> None:
        arrived = self._arrived
        assert arrived is not None
        if not arrived.wait(self.deadline.remaining_s()):
            self.fail(self.late())

    def late(self) -> DeadlineExceeded:
        """Return the error of a call whose time is over."""
        return DeadlineExceeded(
            f"{self.what} on {self.worker}: no answer in time; it may still run there",
            worker=self.worker,
        )

    def deliver(self, reply: Reply) -> None:
        """Take the answer."""
        self._settle(reply, None)

    def fail(self, error: Exception) -> None:
        """Give up; an answer that came is not lost."""
        self._settle(None, error)

    def _settle(self, reply: Reply | None, error: Exception | None) -> None:
        with self._lock:
            if self._reply is not None or self._error is not None:
                return
            self._reply, self._error = reply, error
            arrived, ready = self._arrived, self._ready
            self._ready = None
        if arrived is not None:
            arrived.set()
        if ready is not None:
            self._outstanding.run(ready)

    def notify(self, ready: Callable[[], None]) -> None:
        """Call `ready` on another thread when the answer is there."""

        def respond() -> None:
            self._respond()
            with self._lock:
                waits = self._reply is None and self._error is None
                if waits:
                    self._ready = ready
            if not waits:
                ready()

        pending = self._pending
        # On a lane somebody must wait; there are few connections, so there are few threads.
        if pending is None or not pending.on_answer(lambda: self._outstanding.run(respond)):
            self._outstanding.run(respond)

    def abandon(self) -> None:
        """Take the answer off the connection though nobody wants it."""

        def finish() -> None:
            try:
                self.finish()
            except Exception as error:
                _log.debug("nobody waited for a failed call", extra={"error": str(error)})

        self.notify(finish)


@final
class Outstanding:
    """All calls of this worker.

    Args:
        me: The worker.
        peers: Channels to the others.
        threads: For callbacks.
    """

    def __init__(self, me: Worker, peers: KnowsPeers, threads: Runs) -> None:
        self._me = me
        self._peers = peers
        self.run = threads.run
        self.suspect = peers.suspect
        self._lock = threading.Lock()  # guards all below
        self._changed = threading.Condition(self._lock)
        self._count = 0
        self._calls: dict[int, RpcCall[Any]] = {}
        self._deferred: dict[int, RpcCall[Any]] = {}
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
        """Note a call that is about to be made."""
        with self._lock:
            if self._closed:
                raise Unreachable("rpc was shut down; no call can be made", worker=worker)
            self._count += 1
            call = RpcCall(self, self._count, worker, what, deadline, read, over)
            self._calls[call.call_id] = call
        return call

    def forget(self, call: RpcCall[Any]) -> None:
        """Hear that a call has ended."""
        with self._lock:
            self._calls.pop(call.call_id, None)
            if self._deferred:
                self._deferred.pop(call.call_id, None)
            if not self._calls:
                self._changed.notify_all()

    def deliver(self, frame: Frame[pb.DeliverRequest]) -> bool:
        """Take a deferred answer; return whether anybody waits for it."""
        call = self._calls.get(frame.message.call_id)
        if call is None or frame.message.caller.incarnation != self._me.incarnation:
            return False
        call.deliver(reply_of(frame))
        return True

    def watch(self, call: RpcCall[Any]) -> None:
        """Look after a call whose answer comes later."""
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
        """Ask a worker whether it still knows our calls; return those it does not."""
        request = pb.CheckCallsRequest(
            caller=self._me.proto(), call_ids=[call.call_id for call in calls]
        )
        deadline = Deadline.after(_CHECK_TIMEOUT_S)
        try:
            channel = self._peers.channel(worker, deadline)
            unknown = set(channel.call(METHODS["CheckCalls"], request, deadline).unknown_ids)
        except DeadlineExceeded:
            return set()  # busy; the next round will tell
        except GradmeshError as error:
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

    def wait_idle(self, deadline: Deadline) -> bool:
        """Wait until every call was answered."""
        with self._lock:
            return self._changed.wait_for(lambda: not self._calls, deadline.remaining_s())

    @property
    def made(self) -> int:
        """How many calls were made so far."""
        return self._count

    def __len__(self) -> int:
        return len(self._calls)

    def close(self) -> None:
        """Fail whatever is left; may be called twice."""
        with self._lock:
            self._closed = True
            left = list(self._calls.values())
            self._changed.notify_all()
            watcher, self._watcher = self._watcher, None
        for call in left:
            call.fail(Unreachable(f"{call.what}: rpc was shut down", worker=call.worker))
        if watcher is not None and watcher is not threading.current_thread():
            watcher.join(_CHECK_TIMEOUT_S + 1)

"""One call that this worker has made, until its answer was read."""

import functools
import logging
import select
import socket
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final

from gradmesh.protos.errors import Cancelled, DeadlineExceeded, Overloaded, Unreachable
from gradmesh.sdk.future import Future
from gradmesh.sdk.rpc.reply import Reply, reply_of
from gradmesh.sdk.transport.channel import PendingCall
from gradmesh.sdk.transport.deadline import Deadline

if TYPE_CHECKING:
    from gradmesh.sdk.rpc.outstanding import OutstandingCalls

_log = logging.getLogger(__name__)

T = TypeVar("T")

# As many as a channel has connections.
_CONNECTIONS = 8
_MOMENT_S = 0.0005

# After a moment in vain so many calls go without one: their functions take longer.
_MOST_SKIPPED = 64


@final
class CompletionTask:
    """A task that runs once, when an answer is there; it calls callbacks, which may make calls.

    Args:
        ready: The task.
        over: Called with the reaction when the task has ended, whether or not it raised.
    """

    __slots__ = ("_over", "_ready", "thread")

    def __init__(self, ready: Callable[[], None], over: "Callable[[CompletionTask], None]") -> None:
        self._ready = ready
        self._over = over
        self.thread: int | None = None
        """The thread that it runs on, once it does."""

    def __call__(self) -> None:
        """Run the task."""
        self.thread = threading.get_ident()
        try:
            self._ready()
        finally:
            self._over(self)


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
        "_keeping",
        "_kept",
        "_lock",
        "_outstanding",
        "_over",
        "_pending",
        "_read",
        "_ready",
        "_reply",
        "_sent",
        "_turn",
        "call_id",
        "deadline",
        "deferred",
        "what",
        "worker",
    )

    def __init__(
        self,
        outstanding: "OutstandingCalls",
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
        self._pending: PendingCall | None = None
        self._sent = False
        self._turn = threading.Lock()  # held by the one that waits for the response, or reads it
        self._lock = threading.Lock()  # guards _reply, _error, _arrived, _ready and _keeping
        self._reply: Reply | None = None
        self._error: Exception | None = None
        self._arrived: threading.Event | None = None
        self._ready: tuple[CompletionTask, ...] = ()
        self._keeping = False
        self._kept: Future[T] | None = None

    def sent(self, pending: PendingCall) -> None:
        """Note that the request is on its way."""
        self._pending = pending
        self._sent = True

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
        self._respond()
        if not self._has_answer():
            self._await_delivery()
        with self._turn:
            return self._take() if self._kept is None else self._kept.value()

    def _take(self) -> T:
        """Return what the answer that is there says, or raise it; `_turn` is held."""
        try:
            if self._error is not None:
                raise self._error
            assert self._reply is not None
            return self._read(self._reply)
        finally:
            # After the read: until then references in the answer are not this worker's yet.
            self.end(self._error is None)

    def end(self, answered: bool = False) -> None:
        """Let go of what the call needed; again is no error."""
        over, self._over = self._over, None
        if over is not None:
            self._outstanding.forget(self)
            over(answered)

    @property
    def is_kept(self) -> bool:
        """Whether the answer is read when it comes, or was; or cannot be yet."""
        return self._keeping or not self._sent

    @property
    def is_answered(self) -> bool:
        """Whether reading the answer does not have to wait for it."""
        pending = self._pending
        return self._has_answer() or (pending is not None and pending.answered)

    def keep(self) -> None:
        """Have the answer read when it comes and kept for the future; again is no error.

        The call has ended then, whether or not the user ever asks for its result. Where there are
        too many threads for that it has to be asked for again.
        """
        with self._lock:
            first = not self.is_kept
            self._keeping = self._keeping or first
        if not first:
            return
        if self.is_answered:
            self._keep()  # a thread for each of thousands would be one too many
        else:
            self._keep_later()

    def _keep_later(self) -> None:
        try:
            self.notify(self._keep)
        except Overloaded:
            self._keeping = False

    def _keep(self) -> None:
        self._respond()
        if not self._has_answer():
            self._keep_later()  # the response says that the answer comes later
            return
        with self._turn:
            if self._over is None:
                return  # read by its future
            kept: Future[T] = Future()
            try:
                kept.set_result(self._take())
            except Exception as error:
                kept.set_exception(error)
            self._kept = kept

    def _has_answer(self) -> bool:
        return self._reply is not None or self._error is not None

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
            except BaseException:  # Ctrl-C; the rest of the response cannot be read any more
                self.fail(self._given_up())
                raise
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

    def _given_up(self) -> Cancelled:
        return Cancelled(
            f"{self.what} on {self.worker}: the wait for its answer was interrupted; it may still"
            " run there",
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
            arrived, waiting = self._arrived, self._ready
            self._ready = ()
        if arrived is not None:
            arrived.set()
        for reaction in waiting:
            self._outstanding.react(reaction)

    def notify(self, ready: Callable[[], None]) -> None:
        """Call `ready` on another thread when the answer is there; at once if it was read."""
        if self._kept is not None:
            ready()
            return

        # Expected before it is scheduled: the call may end first, by `keep`.
        reaction = self._outstanding.expect(ready)

        def respond() -> None:
            self._respond()
            with self._lock:
                waits = not self._has_answer()
                if waits:
                    self._ready += (reaction,)
            if not waits:
                reaction()

        pending = self._pending
        # On a lane a thread must wait; there are few connections, so there are few threads.
        start = functools.partial(self._outstanding.start, respond, reaction)
        if pending is None or not pending.on_answer(start):
            start()

    def abandon(self) -> None:
        """Take the answer off the connection, though no future wants it."""

        def finish() -> None:
            try:
                self.finish()
            except Exception as error:
                _log.debug("nobody waited for a failed call", extra={"error": str(error)})

        self.notify(finish)


@final
class ConnectionReaper:
    """The calls of one worker that occupy connections of lanes, by who is asked.

    Used by many threads without a lock: at worst an answer is taken off a little later.
    """

    def __init__(self) -> None:
        # Weak, for what a call brought is not ours to keep.
        self._calls: dict[str, list[weakref.ref[RpcCall[Any]]]] = defaultdict(list)
        self._skip: dict[str, int] = defaultdict(int)
        self._penalty: dict[str, int] = defaultdict(lambda: 1)

    def sown(self, call: RpcCall[Any]) -> None:
        """Note a call that was sent."""
        if call.doorbell is not None:
            self._calls[call.worker].append(weakref.ref(call))

    def make_room(self, worker: str) -> None:
        """Take answers off, if all connections to a worker seem to be taken."""
        calls = self._calls.get(worker)
        if calls is None or len(calls) < _CONNECTIONS:
            return
        bells: dict[socket.socket, RpcCall[Any]] = {
            bell: call
            for known in calls
            if (call := known()) is not None and (bell := call.doorbell) is not None
        }
        if len(bells) >= _CONNECTIONS:
            for bell in self._ringing(worker, list(bells)):
                bells.pop(bell).take()
        self._calls[worker] = [weakref.ref(call) for call in bells.values()]

    def _ringing(self, worker: str, bells: list[socket.socket]) -> list[socket.socket]:
        """Return the connections with an answer; waits a moment where that is worth it."""
        patient = self._skip[worker] == 0
        try:
            ringing = select.select(bells, (), (), _MOMENT_S if patient else 0)[0]
        except (OSError, ValueError):  # one was closed meanwhile
            return []
        if ringing:
            self._penalty[worker] = 1
        elif patient:
            self._skip[worker] = self._penalty[worker]
            self._penalty[worker] = min(2 * self._penalty[worker], _MOST_SKIPPED)
        else:
            self._skip[worker] -= 1
        return ringing

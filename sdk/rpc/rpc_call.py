"""One call of this worker, from its request until its reply was read."""

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

# Lane connections of a channel.
_CONNECTIONS = 8
_MOMENT_S = 0.0005

# Back-off: after a wait without a reply this many calls do not wait, at most.
_MOST_SKIPPED = 64


@final
class CompletionTask:
    """A task that runs once, when a reply has arrived; it runs callbacks, which may make calls.

    Args:
        ready: The task.
        over: Called with this object when the task has ended, whether or not it raised.
    """

    __slots__ = ("_over", "_ready", "thread")

    def __init__(self, ready: Callable[[], None], over: "Callable[[CompletionTask], None]") -> None:
        self._ready = ready
        self._over = over
        self.thread: int | None = None
        """The thread that runs it; None before."""

    def __call__(self) -> None:
        """Run the task."""
        self.thread = threading.get_ident()
        try:
            self._ready()
        finally:
            self._over(self)


@final
class RpcCall(Generic[T]):
    """One call in progress; the source of its Future.

    Args:
        outstanding: All calls of this worker.
        call_id: Number of the call.
        worker: The called worker.
        what: The function or value, for error messages.
        deadline: When to stop waiting.
        read: Converts the reply into the result, or raises its error.
        over: Called once when the call has ended, with whether a reply was received.
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
        self._turn = threading.Lock()  # held by the thread that waits for the response, or reads it
        self._lock = threading.Lock()  # guards _reply, _error, _arrived, _ready and _keeping
        self._reply: Reply | None = None
        self._error: Exception | None = None
        self._arrived: threading.Event | None = None
        self._ready: tuple[CompletionTask, ...] = ()
        self._keeping = False
        self._kept: Future[T] | None = None

    def sent(self, pending: PendingCall) -> None:
        """Record that the request was sent."""
        self._pending = pending
        self._sent = True

    @property
    def doorbell(self) -> socket.socket | None:
        """The socket that is readable when the response has arrived; None if there is none."""
        pending = self._pending
        return None if pending is None else pending.doorbell

    def take(self) -> None:
        """Read a response that has arrived, so that its connection is free."""
        self._respond()

    def finish(self) -> T:
        """Wait for the reply; return its result or raise its error."""
        self._respond()
        if not self._has_answer():
            self._await_delivery()
        with self._turn:
            return self._take() if self._kept is None else self._kept.value()

    def _take(self) -> T:
        """Return the result of the received reply, or raise its error; `_turn` is held."""
        try:
            if self._error is not None:
                raise self._error
            assert self._reply is not None
            return self._read(self._reply)
        finally:
            # After the read: only then does this worker hold the references in the reply.
            self.end(self._error is None)

    def end(self, answered: bool = False) -> None:
        """Release the resources of the call; idempotent."""
        over, self._over = self._over, None
        if over is not None:
            self._outstanding.remove(self)
            over(answered)

    @property
    def is_kept(self) -> bool:
        """Whether the reply was read, is being read on arrival, or cannot be read yet."""
        return self._keeping or not self._sent

    @property
    def is_answered(self) -> bool:
        """Whether the reply has arrived, so that reading it does not block."""
        pending = self._pending
        return self._has_answer() or (pending is not None and pending.answered)

    def keep(self) -> None:
        """Read the reply on arrival and store it for the future; idempotent.

        The call then ends even if the user never reads its result. If no thread is free, this must
        be called again.
        """
        with self._lock:
            first = not self.is_kept
            self._keeping = self._keeping or first
        if not first:
            return
        if self.is_answered:
            self._keep()  # not a thread for each of thousands of calls
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
            self._keep_later()  # the response announces a deferred reply
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
        """Wait for the response, which may announce a deferred reply."""
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
        """Return the error of a call whose deadline has passed."""
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
        """Accept the reply."""
        self._settle(reply, None)

    def fail(self, error: Exception) -> None:
        """Fail the call, unless its reply has arrived."""
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
        """Call `ready` on another thread when the reply has arrived; at once if it was read."""
        if self._kept is not None:
            ready()
            return

        # Register it before scheduling: the call may end first, by `keep`.
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
        # On a lane a thread must wait; the number of connections bounds the number of threads.
        start = functools.partial(self._outstanding.start, respond, reaction)
        if pending is None or not pending.on_answer(start):
            start()

    def abandon(self) -> None:
        """Read the reply to free the connection, although no future needs it."""

        def finish() -> None:
            try:
                self.finish()
            except Exception as error:
                _log.debug("no future waited for a failed call", extra={"error": str(error)})

        self.notify(finish)


@final
class ConnectionReaper:
    """Read replies that have arrived, to free the lane connections of calls without a reader.

    Used by many threads without a lock: at worst a reply is read a little later.
    """

    def __init__(self) -> None:
        # Weak: a finished call and its result must not be kept alive here.
        self._calls: dict[str, list[weakref.ref[RpcCall[Any]]]] = defaultdict(list)
        self._skip: dict[str, int] = defaultdict(int)
        self._penalty: dict[str, int] = defaultdict(lambda: 1)

    def add(self, call: RpcCall[Any]) -> None:
        """Track a call that was sent."""
        if call.doorbell is not None:
            self._calls[call.worker].append(weakref.ref(call))

    def free_connections(self, worker: str) -> None:
        """Read replies if all connections to a worker seem to be in use."""
        calls = self._calls.get(worker)
        if calls is None or len(calls) < _CONNECTIONS:
            return
        sockets: dict[socket.socket, RpcCall[Any]] = {
            sock: call
            for known in calls
            if (call := known()) is not None and (sock := call.doorbell) is not None
        }
        if len(sockets) >= _CONNECTIONS:
            for sock in self._readable(worker, list(sockets)):
                sockets.pop(sock).take()
        self._calls[worker] = [weakref.ref(call) for call in sockets.values()]

    def _readable(self, worker: str, sockets: list[socket.socket]) -> list[socket.socket]:
        """Return the connections with a reply; wait briefly unless recent waits were in vain."""
        waits = self._skip[worker] == 0
        try:
            readable = select.select(sockets, (), (), _MOMENT_S if waits else 0)[0]
        except (OSError, ValueError):  # one was closed meanwhile
            return []
        if readable:
            self._penalty[worker] = 1
        elif waits:
            self._skip[worker] = self._penalty[worker]
            self._penalty[worker] = min(2 * self._penalty[worker], _MOST_SKIPPED)
        else:
            self._skip[worker] -= 1
        return readable

"""The user's side of references: those to values of other workers, and those passed on.

A reference is pending until its owner has registered it. When its last use on this worker ends, a
deletion is sent to the owner until it arrives, or the owner is known to be gone.
"""

import threading
import time
import weakref
from typing import Any, NamedTuple, final

from gradmesh.protos.common.v1 import value_pb2
from gradmesh.protos.errors import Forbidden
from gradmesh.sdk.future import Future, without_frames
from gradmesh.sdk.rpc.ids import GlobalId, IdCounter, WorkerId, fork_proto
from gradmesh.sdk.rpc.rref.control import RRefControl
from gradmesh.sdk.rpc.rref.owners import IsGone
from gradmesh.sdk.transport.deadline import Deadline

# Lifetime of a reference that was passed on in a call whose outcome is unknown.
_HOLD_S = 600.0


@final
class PendingCreation:
    """The creation of a value on another worker, in progress.

    At first no thread waits for its reply. The thread that uses the reference does so, or else a
    background thread a few milliseconds later. This saves a thread switch for references that are
    used at once.

    Args:
        answer: The reply to the creation.
        created: Completed when the reply has arrived.
        deadline: Deadline of the creation.
    """

    __slots__ = ("_answer", "_created", "_deadline", "_lock")

    def __init__(self, answer: Future[None], created: Future[None], deadline: Deadline) -> None:
        self._answer = answer
        self._created = created
        self._deadline = deadline
        self._lock = threading.Lock()  # held while _created is completed

    def await_answer(self, deadline: Deadline) -> None:
        """Wait for the reply on this thread, unless it may arrive after the deadline."""
        if not self._created.done() and self._deadline.at <= deadline.at:
            self._settle(self._answer)

    def finish(self) -> None:
        """Let another thread wait for the reply."""
        self._answer.add_done_callback(self._settle)

    def _settle(self, answer: Future[None]) -> None:
        error = answer.exception()
        with self._lock:
            if self._created.done():
                return
            if error is None:
                self._created.set_result(None)
            else:
                self._created.set_exception(without_frames(error))


@final
class UserRef:
    """One reference of this worker to a value of another one.

    Args:
        owner: The worker that owns the value.
        key: Name of the value.
        fork: Name of the reference.

    Attributes:
        confirmed: Completed when the owner has registered the reference, or with the error of the
            registration.
        deleted: Whether its deletion was sent to the owner.
        creation: The creation of the value, where this worker asked for it.
        calls: Number of requests about the value without a reply.
        dropped: Whether no RRef on this worker uses it any more.
    """

    __slots__ = ("calls", "confirmed", "creation", "deleted", "dropped", "fork", "key", "owner")

    def __init__(self, owner: WorkerId, key: GlobalId, fork: GlobalId) -> None:
        self.owner = owner
        self.key = key
        self.fork = fork
        self.confirmed: Future[None] = Future()
        self.deleted = False
        self.creation: PendingCreation | None = None
        self.calls = 0
        self.dropped = False

    def fail(self, error: BaseException) -> None:
        """Record that its registration with the owner failed."""
        self.confirmed.set_exception(without_frames(error))

    def proto(self) -> value_pb2.RemoteRef:
        """Return the reference as a wire message."""
        return value_pb2.RemoteRef(
            owner=self.owner.name,
            owner_incarnation=self.owner.incarnation,
            creator=self.key.worker,
            incarnation=self.key.incarnation,
            counter=self.key.counter,
            fork=fork_proto(self.fork),
        )


class PendingChild(NamedTuple):
    """A reference kept because it was passed on.

    Args:
        rref: The reference.
        worker: The receiver.
        until: When it expires.
    """

    rref: Any
    worker: str
    until: float


@final
class UserRefs:
    """All references of one worker to values of others.

    Args:
        keys: Generates the worker's ids.
        control: Sends the messages about them.
    """

    def __init__(self, keys: IdCounter, control: RRefControl) -> None:
        self._keys = keys
        self._control = control
        self._lock = threading.Lock()  # guards all below
        self._living: dict[GlobalId, UserRef] = {}
        self._holds: dict[GlobalId, PendingChild] = {}

    def track(self, rref: Any, used: UserRef) -> None:
        """Delete a reference from its owner when its last RRef on this worker is gone."""
        with self._lock:
            self._living[used.fork] = used
        weakref.finalize(rref, self._drop, used).atexit = False

    def _drop(self, used: UserRef) -> None:
        """Schedule the deletion; called by the garbage collector, on any thread, under any lock."""
        self._control.later(lambda: self._dropped(used))

    def _dropped(self, used: UserRef) -> None:
        """Delete a reference without an RRef, after the replies to all requests about it."""
        with self._lock:
            used.dropped = True
            asked = used.calls > 0
        if not asked:
            self._delete_later(used)

    def begin_use(self, used: UserRef) -> None:
        """Keep a reference registered with its owner until `end_use`, even if its RRef is gone."""
        with self._lock:
            used.calls += 1

    def end_use(self, used: UserRef) -> None:
        """Release a reference after the reply to a request about it."""
        with self._lock:
            used.calls -= 1
            unused = used.dropped and not used.calls
        if unused:
            self._control.later(lambda: self._delete_later(used))

    def _delete_later(self, used: UserRef) -> None:
        """Delete a reference once its owner has registered it."""
        used.confirmed.add_done_callback(lambda _: self._delete(used))

    def _delete(self, used: UserRef) -> None:
        with self._lock:
            self._living.pop(used.fork, None)
            first, used.deleted = not used.deleted, True
        if first:
            self._control.delete(used.owner, used.proto())

    def delete_all(self) -> None:
        """Delete every reference, used or not; later requests through one fail."""
        with self._lock:
            self._holds.clear()
            living = list(self._living.values())
        for used in living:
            self._delete_later(used)

    def hold(self, rref: Any, worker: str) -> GlobalId:
        """Keep a reference that is passed on; return the id of the receiver's one."""
        fork = self._keys.new()
        with self._lock:
            self._holds[fork] = PendingChild(rref, worker, time.monotonic() + _HOLD_S)
        return fork

    def held(self, fork: GlobalId) -> Any:
        """Return a reference that was passed on and came back, or None."""
        with self._lock:
            hold = self._holds.pop(fork, None)
        return None if hold is None else hold.rref

    def release(self, fork: GlobalId) -> None:
        """Release a reference that was passed on: its owner has registered the receiver's one."""
        with self._lock:
            dropped = self._holds.pop(fork, None)
        del dropped  # outside of the lock: it may be the last use

    def accept(self, fork: GlobalId, sender: WorkerId | None) -> None:
        """Release a reference that was passed on, on the word of its receiver.

        Raises:
            Forbidden: The sender is authenticated, and not the receiver.
        """
        hold = self._holds.get(fork)
        if hold is not None and sender is not None and hold.worker != sender.name:
            raise Forbidden(
                f"{sender.name!r} may not accept a reference that was passed to {hold.worker!r}",
                worker=sender.name,
            )
        self.release(fork)

    def collect(self, is_gone: IsGone) -> None:
        """Release the references that were passed on to workers that are gone, or have expired."""
        now = time.monotonic()
        with self._lock:
            workers = {hold.worker for hold in self._holds.values()}
        gone = {worker for worker in workers if is_gone(WorkerId(worker))}
        with self._lock:
            lost = [f for f, h in self._holds.items() if h.worker in gone or h.until < now]
            dropped = [self._holds.pop(fork) for fork in lost]
        del dropped

    def report(self) -> list[str]:
        """Return one line about each reference that is in use."""
        with self._lock:
            return [
                f"UserRRef(RRefId = {used.key}, ForkId = {used.fork}) to {used.owner.name}"
                for used in self._living.values()
            ]

    def counts(self) -> dict[str, int]:
        """Return counters for `debug_info`."""
        with self._lock:
            pending = sum(not used.confirmed.done() for used in self._living.values())
            return {
                "num_pending_users": pending,
                "num_confirmed_users": len(self._living) - pending,
                "num_pending_children": len(self._holds),
            }

    def __len__(self) -> int:
        return len(self._living)

"""The user's side of references: those this worker has to values of others, and those passed on.

A reference is pending until its owner has heard of it. It is deleted there once nobody here uses it
any more, by a message that is sent again until it arrives, or its owner is known to be gone.
"""

import threading
import time
import weakref
from typing import Any, NamedTuple, final

from gradmesh.protos.common.v1 import value_pb2
from gradmesh.sdk.future import Future, without_frames
from gradmesh.sdk.rpc.ids import GlobalId, IdCounter, WorkerId, fork_proto
from gradmesh.sdk.rpc.rref.control import RRefControl
from gradmesh.sdk.rpc.rref.owners import IsGone
from gradmesh.sdk.transport.deadline import Deadline

# A reference that was passed on with a call whose fate nobody knows.
_HOLD_S = 600.0


@final
class PendingCreation:
    """The creation of a value elsewhere, under way.

    Nobody waits for its answer at first: whoever uses the reference soon does, else a thread of
    the worker's a few milliseconds later. That saves the thread where it matters.

    Args:
        answer: Of the creation.
        created: Settled when the answer is there.
        deadline: Of the creation.
    """

    __slots__ = ("_answer", "_created", "_deadline", "_lock")

    def __init__(self, answer: Future[None], created: Future[None], deadline: Deadline) -> None:
        self._answer = answer
        self._created = created
        self._deadline = deadline
        self._lock = threading.Lock()  # held while _created is settled

    def await_answer(self, deadline: Deadline) -> None:
        """Wait for the answer on this thread, unless it may come after the deadline."""
        if not self._created.done() and self._deadline.at <= deadline.at:
            self._settle(self._answer)

    def finish(self) -> None:
        """Have the answer waited for by somebody else."""
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
    """One reference of this worker to a value elsewhere.

    Args:
        owner: Who keeps the value.
        key: Name of the value.
        fork: Name of the reference.

    Attributes:
        confirmed: Settled when the owner knows the reference, with an error if it never will.
        deleted: Whether the owner was told that it is gone.
        creation: The creation of the value, where this worker asked for it.
        calls: How many questions about the value have no answer yet.
        dropped: Whether no RRef here uses it any more.
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
        """Take notice that the owner never will know it."""
        self.confirmed.set_exception(without_frames(error))

    def proto(self) -> value_pb2.RemoteRef:
        """Return the reference as the wire carries it."""
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
        rref: What is kept.
        worker: Who got it.
        until: When nobody can come for it any more.
    """

    rref: Any
    worker: str
    until: float


@final
class UserRefs:
    """All references of one worker to values of others.

    Args:
        keys: The worker's count of names.
        control: Sends the messages about them.
    """

    def __init__(self, keys: IdCounter, control: RRefControl) -> None:
        self._keys = keys
        self._control = control
        self._lock = threading.Lock()  # guards all below
        self._living: dict[GlobalId, UserRef] = {}
        self._holds: dict[GlobalId, PendingChild] = {}

    def track(self, rref: Any, used: UserRef) -> None:
        """Tell the owner when the last user of a reference here is gone."""
        with self._lock:
            self._living[used.fork] = used
        weakref.finalize(rref, self._drop, used).atexit = False

    def _drop(self, used: UserRef) -> None:
        """Begin to delete; called by the garbage collector, on any thread, under any lock."""
        self._control.later(lambda: self._dropped(used))

    def _dropped(self, used: UserRef) -> None:
        """Delete a reference without an RRef, after the answers to all questions about it."""
        with self._lock:
            used.dropped = True
            asked = used.calls > 0
        if not asked:
            self._delete_later(used)

    def begin_use(self, used: UserRef) -> None:
        """Keep a reference known to its owner until `end_use`, though its RRef may be gone."""
        with self._lock:
            used.calls += 1

    def end_use(self, used: UserRef) -> None:
        """Let go of a reference after an answer."""
        with self._lock:
            used.calls -= 1
            unused = used.dropped and not used.calls
        if unused:
            self._control.later(lambda: self._delete_later(used))

    def _delete_later(self, used: UserRef) -> None:
        """Delete a reference once its owner knows it."""
        used.confirmed.add_done_callback(lambda _: self._delete(used))

    def _delete(self, used: UserRef) -> None:
        with self._lock:
            self._living.pop(used.fork, None)
            first, used.deleted = not used.deleted, True
        if first:
            self._control.delete(used.owner, used.proto())

    def delete_all(self) -> None:
        """Delete every reference, used or not; what is asked of one afterwards fails."""
        with self._lock:
            self._holds.clear()
            living = list(self._living.values())
        for used in living:
            self._delete_later(used)

    def hold(self, rref: Any, worker: str) -> GlobalId:
        """Keep a reference that is passed on; return the name of the new one."""
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
        """Let go of a reference that was passed on: its owner knows the new one."""
        with self._lock:
            dropped = self._holds.pop(fork, None)
        del dropped  # outside of the lock: it may be the last use

    def collect(self, is_gone: IsGone) -> None:
        """Let go of what was passed on to workers that are gone."""
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
        """Return figures for `debug_info`."""
        with self._lock:
            pending = sum(not used.confirmed.done() for used in self._living.values())
            return {
                "num_pending_users": pending,
                "num_confirmed_users": len(self._living) - pending,
                "num_pending_children": len(self._holds),
            }

    def __len__(self) -> int:
        return len(self._living)

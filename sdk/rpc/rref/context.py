"""References in messages: bookkeeping when one is sent and when one is received."""

import logging
import threading
from typing import Any, final

from gradmesh.protos import limits
from gradmesh.protos.common.v1 import value_pb2
from gradmesh.protos.errors import MeshError, RefNotFound
from gradmesh.protos.limits import check_count
from gradmesh.protos.owner.v1 import owner_pb2 as pb
from gradmesh.sdk.rpc.directory import WorkerDirectory
from gradmesh.sdk.rpc.ids import (
    GlobalId,
    IdCounter,
    WorkerId,
    fork_key,
    fork_of,
    fork_proto,
    key_of,
    worker_of,
)
from gradmesh.sdk.rpc.rref.control import METHODS, RRefControl, WorkerChannels
from gradmesh.sdk.rpc.rref.owners import OwnedValues
from gradmesh.sdk.rpc.rref.rref import RRef, RRefClient
from gradmesh.sdk.rpc.rref.users import UserRef, UserRefs
from gradmesh.sdk.transport.channel import PendingCall
from gradmesh.sdk.transport.deadline import Deadline

_log = logging.getLogger(__name__)

_EVERY_S = 2.0


@final
class OutgoingRefs:
    """The references in one message that is about to be sent.

    Args:
        rrefs: All references of this worker.
        to: The receiver of the message.
    """

    __slots__ = ("_rrefs", "_shared", "_to", "holds")

    def __init__(self, rrefs: "RRefContext", to: WorkerId) -> None:
        self._rrefs = rrefs
        self._to = to
        self.holds: list[GlobalId] = []
        self._shared: list[tuple[GlobalId, GlobalId]] = []

    def lend(self, obj: object) -> value_pb2.RemoteRef | None:
        """Return the wire message of a reference, or None for other objects.

        Raises:
            RefNotFound: Its creation failed, or it was deleted.
        """
        if not isinstance(obj, RRef):
            return None
        rrefs = self._rrefs
        if obj._kept is not None:
            key = obj._kept.key
            fork = rrefs.owners.share(obj._kept, self._to)
            self._shared.append((key, fork))
            return value_pb2.RemoteRef(
                owner=rrefs.me.name,
                owner_incarnation=rrefs.me.incarnation,
                creator=key.worker,
                incarnation=key.incarnation,
                counter=key.counter,
                fork=fork_proto(fork),
            )
        used = obj._usable()
        fork = rrefs.users.hold(obj, self._to.name)
        self.holds.append(fork)
        proto = used.proto()
        proto.fork.CopyFrom(fork_proto(fork))
        proto.parent.CopyFrom(rrefs.me.proto())
        return proto

    def target(self, rref: RRef[Any]) -> value_pb2.RemoteRef:
        """Return the wire message of the target object of a method call.

        Raises:
            RefNotFound: Its creation failed, or it was deleted.
        """
        # The call keeps the reference alive, so the owner's table needs no new one.
        lent = self.lend(rref) if rref._kept is not None else rref._usable().proto()
        assert lent is not None
        return lent

    def arrived(self) -> None:
        """Release the references: the receiver replied, so their owners have its own."""
        for fork in self.holds:
            self._rrefs.users.release(fork)

    def undo(self) -> None:
        """Revert all bookkeeping: the message was not sent."""
        self.arrived()
        for key, fork in self._shared:
            self._rrefs.owners.delete(key, fork)


@final
class IncomingRefs:
    """The references in one received message; a context manager around decoding it.

    Leaving it waits until the owners have registered all of them.

    Args:
        rrefs: All references of this worker.
        is_reply: Whether the sender waits for an acknowledgement of each reference.
    """

    __slots__ = ("_calls", "_is_reply", "_rrefs")

    def __init__(self, rrefs: "RRefContext", is_reply: bool) -> None:
        self._rrefs = rrefs
        self._is_reply = is_reply
        self._calls: list[tuple[PendingCall, UserRef, WorkerId]] = []

    def take(self, ref: value_pb2.RemoteRef, deadline: Deadline) -> RRef[Any]:
        """Return a received reference.

        Raises:
            RefNotFound: The value was deleted.
            LimitExceeded: The message has too many references to values of other workers.
        """
        rrefs = self._rrefs
        parent = worker_of(ref.parent) if ref.HasField("parent") else None
        if ref.owner == rrefs.me.name:
            return self._own(ref, parent)
        fork = fork_of(ref)
        if parent == rrefs.me:
            held = rrefs.users.held(fork)
            if held is not None:
                return held  # type: ignore[no-any-return]
        check_count("references in a message", len(self._calls) + 1, limits.MAX_IDS_AT_ONCE)
        used = UserRef(WorkerId(ref.owner, ref.owner_incarnation), key_of(ref), fork)
        rref: RRef[Any] = RRef._of_user(rrefs.home, used)
        rrefs.users.track(rref, used)
        if parent is None:
            used.confirmed.set_result(None)  # the owner itself made it
        else:
            request = pb.ForkRefRequest(ref=ref, caller=rrefs.me.proto())
            try:
                channel = rrefs.directory.channel(ref.owner, deadline)
                call = channel.start(METHODS["ForkRef"], request, deadline)
            except BaseException as error:
                used.fail(error)
                raise
            self._calls.append((call, used, parent))
        return rref

    def _own(self, ref: value_pb2.RemoteRef, parent: WorkerId | None) -> RRef[Any]:
        """Return a reference to a value of this worker."""
        rrefs = self._rrefs
        rrefs.check_incarnation(ref)
        key, fork = key_of(ref), fork_of(ref)
        rref: RRef[Any] = RRef._of_owner(rrefs.home, rrefs.owners.find(key))
        if parent is None:
            rrefs.owners.take_back(key, fork)
        elif parent == rrefs.me:
            rrefs.users.release(fork)
        elif parent is not None and self._is_reply:
            rrefs.control.accept(parent, fork)
        return rref

    def __enter__(self) -> None:
        """Enter the context."""

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            self._settle()
        except MeshError:
            if error is None:
                raise  # else the error of the message itself is raised

    def _settle(self) -> None:
        """Wait until the owners have registered all references of the message.

        Raises:
            MeshError: Registration of one failed; none of the message's references can be used
                then.
        """
        failure: Exception | None = None
        for call, used, parent in self._calls:
            try:
                call.result()
            except Exception as error:
                failure = failure or error
                used.fail(error)
            else:
                used.confirmed.set_result(None)
                self._rrefs.control.accept(parent, used.fork)
        self._calls.clear()
        if failure is not None:
            raise failure


@final
class RRefContext:
    """All references of one worker.

    Args:
        me: The worker.
        home: The client that references call their owners with.
        directory: Channels to other workers.
        control: Sends messages about references.
    """

    def __init__(
        self, me: WorkerId, home: RRefClient, directory: WorkerChannels, control: RRefControl
    ) -> None:
        self.me = me
        self.home = home
        self.directory = directory
        self.control = control
        self.keys = IdCounter(me)
        self.owners = OwnedValues(me, self.keys)
        self.users = UserRefs(self.keys, control)

    def check_incarnation(self, ref: value_pb2.RemoteRef) -> None:
        """Check that a reference to this worker is to this process and not to a former one.

        Raises:
            RefNotFound: It is to a former process of the name.
        """
        if ref.owner_incarnation not in (0, self.me.incarnation):
            raise RefNotFound(
                f"{self.me.name} restarted since the reference was made; its values are gone",
                worker=self.me.name,
            )

    def accept_fork(self, fork: value_pb2.ForkId, sender: WorkerId | None = None) -> None:
        """Release a passed-on reference: the owner has registered the receiver's own.

        Args:
            fork: The reference.
            sender: The worker that says so, if it is authenticated.

        Raises:
            Forbidden: It is not the worker that the reference was passed to.
        """
        self.users.accept(fork_key(fork), sender)


@final
class CallCleanup:
    """Releases the references of a call when it has ended.

    Args:
        lending: The references that it carried.
        kept: An object to keep alive until then.
    """

    __slots__ = ("_kept", "_lending")

    def __init__(self, lending: OutgoingRefs, kept: object) -> None:
        self._lending = lending
        self._kept = kept

    def __call__(self, answered: bool) -> None:
        """Release the references."""
        # If the outcome of the call is unknown, the receiver may still register its references.
        if answered:
            self._lending.arrived()
        self._kept = None


@final
class RRefCollector:
    """Collects the references of lost workers, periodically.

    Args:
        rrefs: All references of this worker.
        directory: Lists the members.
    """

    def __init__(self, rrefs: RRefContext, directory: WorkerDirectory) -> None:
        self._rrefs = rrefs
        self._directory = directory
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="rref-collector", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closed.wait(_EVERY_S):
            try:
                self.collect()
            except MeshError as error:
                _log.debug("references not looked after", extra={"error": error.message})
            except Exception:
                _log.exception("references not looked after")

    def collect(self) -> None:
        """Drop the references of workers that are gone.

        A member of the same name with another incarnation is another worker.
        """
        rrefs = self._rrefs
        rrefs.owners.expire()
        others = {holder for holder in rrefs.owners.holders() if holder != rrefs.me}
        if not others and not rrefs.users.counts()["num_pending_children"]:
            return
        members = self._directory.refresh(Deadline.after(_EVERY_S))

        def is_gone(worker: WorkerId) -> bool:
            return worker != rrefs.me and self._directory.is_lost(worker, members)

        def is_stranger(worker: WorkerId) -> bool:
            return worker != rrefs.me and not self._directory.was_member(worker)

        count = rrefs.owners.collect(is_gone, is_stranger)
        rrefs.users.collect(is_gone)
        if count:
            _log.warning("collected references of lost workers", extra={"references": count})

    def close(self) -> None:
        """End the thread; may be called twice."""
        self._closed.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(5.0)

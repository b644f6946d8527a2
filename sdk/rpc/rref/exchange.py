"""References on their way from worker to worker: what is noted when one leaves, and comes."""

from typing import Any, final

from gradmesh.protos.common.v1 import value_pb2
from gradmesh.protos.errors import MeshError, RefNotFound
from gradmesh.protos.owner.v1 import owner_pb2 as pb
from gradmesh.sdk.rpc.rref.control import METHODS, Control, KnowsPeers
from gradmesh.sdk.rpc.rref.ids import (
    Key,
    Keys,
    Worker,
    fork_key,
    fork_of,
    fork_proto,
    key_of,
    worker_of,
)
from gradmesh.sdk.rpc.rref.owners import Owners
from gradmesh.sdk.rpc.rref.rref import Home, RRef
from gradmesh.sdk.rpc.rref.users import Used, Users
from gradmesh.sdk.transport.channel import PendingCall
from gradmesh.sdk.transport.deadline import Deadline


@final
class Lending:
    """The references in one message that is about to be sent.

    Args:
        exchange: Of this worker.
        to: Who gets the message.
    """

    __slots__ = ("_exchange", "_shared", "_to", "holds")

    def __init__(self, exchange: "Exchange", to: Worker) -> None:
        self._exchange = exchange
        self._to = to
        self.holds: list[Key] = []
        self._shared: list[tuple[Key, Key]] = []

    def lend(self, obj: object) -> value_pb2.RemoteRef | None:
        """Return what the wire carries for a reference, or None for an object that is none.

        Raises:
            RefNotFound: Its creation failed, or it was deleted.
        """
        if not isinstance(obj, RRef):
            return None
        exchange = self._exchange
        if obj._kept is not None:
            key = obj._kept.key
            fork = exchange.owners.share(obj._kept, self._to)
            self._shared.append((key, fork))
            return value_pb2.RemoteRef(
                owner=exchange.me.name,
                owner_incarnation=exchange.me.incarnation,
                creator=key.worker,
                incarnation=key.incarnation,
                counter=key.counter,
                fork=fork_proto(fork),
            )
        used = obj._usable()
        fork = exchange.users.hold(obj, self._to.name)
        self.holds.append(fork)
        proto = used.proto()
        proto.fork.CopyFrom(fork_proto(fork))
        proto.parent.CopyFrom(exchange.me.proto())
        return proto

    def target(self, rref: RRef[Any]) -> value_pb2.RemoteRef:
        """Return what the wire carries for the object of a method call.

        Raises:
            RefNotFound: Its creation failed, or it was deleted.
        """
        # The call keeps the reference alive, so the owner's table needs no new one.
        lent = self.lend(rref) if rref._kept is not None else rref._usable().proto()
        assert lent is not None
        return lent

    def arrived(self) -> None:
        """Let go: the receiver has answered, so the owners know its references."""
        for fork in self.holds:
            self._exchange.users.release(fork)

    def undo(self) -> None:
        """Take everything back: the message was not sent."""
        self.arrived()
        for key, fork in self._shared:
            self._exchange.owners.delete(key, fork)


@final
class Borrowing:
    """The references in one message that arrived; a context manager around reading it.

    Leaving it waits until the owners know them all.

    Args:
        exchange: Of this worker.
        is_reply: Whether the sender waits for word that they arrived.
    """

    __slots__ = ("_calls", "_exchange", "_is_reply")

    def __init__(self, exchange: "Exchange", is_reply: bool) -> None:
        self._exchange = exchange
        self._is_reply = is_reply
        self._calls: list[tuple[PendingCall, Used, Worker]] = []

    def take(self, ref: value_pb2.RemoteRef, deadline: Deadline) -> RRef[Any]:
        """Return a reference that arrived.

        Raises:
            RefNotFound: The value is gone.
        """
        exchange = self._exchange
        parent = worker_of(ref.parent) if ref.HasField("parent") else None
        if ref.owner == exchange.me.name:
            return self._own(ref, parent)
        fork = fork_of(ref)
        if parent == exchange.me:
            held = exchange.users.held(fork)
            if held is not None:
                return held  # type: ignore[no-any-return]
        used = Used(Worker(ref.owner, ref.owner_incarnation), key_of(ref), fork)
        rref: RRef[Any] = RRef._of_user(exchange.home, used)
        exchange.users.track(rref, used)
        if parent is None:
            used.confirmed.set_result(None)  # the owner itself made it
        else:
            request = pb.ForkRefRequest(ref=ref, caller=exchange.me.proto())
            try:
                channel = exchange.peers.channel(ref.owner, deadline)
                call = channel.start(METHODS["ForkRef"], request, deadline)
            except BaseException as error:
                used.fail(error)
                raise
            self._calls.append((call, used, parent))
        return rref

    def _own(self, ref: value_pb2.RemoteRef, parent: Worker | None) -> RRef[Any]:
        """Return a reference to a value of this worker."""
        exchange = self._exchange
        exchange.check_incarnation(ref)
        key, fork = key_of(ref), fork_of(ref)
        rref: RRef[Any] = RRef._of_owner(exchange.home, exchange.owners.find(key))
        if parent is None:
            exchange.owners.take_back(key, fork)
        elif parent == exchange.me:
            exchange.users.release(fork)
        elif parent is not None and self._is_reply:
            exchange.control.accept(parent, fork)
        return rref

    def __enter__(self) -> None:
        """Begin to read."""

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            self._settle()
        except MeshError:
            if error is None:
                raise  # else the message itself is bad, which says more

    def _settle(self) -> None:
        """Wait until the owners know all references of the message.

        Raises:
            MeshError: One of them does not; none of the message's references is of use then.
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
                self._exchange.control.accept(parent, used.fork)
        self._calls.clear()
        if failure is not None:
            raise failure


@final
class Exchange:
    """All references of one worker.

    Args:
        me: The worker.
        home: What references need to ask their owners.
        peers: Channels to other workers.
        control: Sends messages about references.
    """

    def __init__(self, me: Worker, home: Home, peers: KnowsPeers, control: Control) -> None:
        self.me = me
        self.home = home
        self.peers = peers
        self.control = control
        self.keys = Keys(me)
        self.owners = Owners(me, self.keys)
        self.users = Users(self.keys, control)

    def check_incarnation(self, ref: value_pb2.RemoteRef) -> None:
        """Return if a reference to a value of this worker is to one of this process.

        Raises:
            RefNotFound: It is to one of a former process of the name.
        """
        if ref.owner_incarnation not in (0, self.me.incarnation):
            raise RefNotFound(
                f"{self.me.name} restarted since the reference was made; what it kept is gone",
                worker=self.me.name,
            )

    def accept_fork(self, fork: value_pb2.ForkId) -> None:
        """Hear that an owner knows a reference that was passed on from here."""
        self.users.release(fork_key(fork))

"""The messages of a context: send and receive records of this process, and their lineage.

Every message with tensors that require gradients lists the messages that its tensors were computed
from, transitively. So the worker that starts a backward pass has the whole plan without a request:
which gradients will flow and which workers take part.

A note carries only records that the receiver may not have yet. A worker has the records of its own
messages, and those of all messages that it named in a note, with their ancestors. So repeated calls
between two workers cost a few bytes each, however long their lineage.
"""

import sys
import threading
import weakref
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, final

from gradmesh.engine.autograd import GradientEntry, ReceiveNode, Tensor, receive
from gradmesh.engine.autograd.local_pass import find_receive_nodes
from gradmesh.protos import limits
from gradmesh.protos.common.v1 import autograd_pb2, worker_pb2
from gradmesh.protos.errors import (
    InvalidFrame,
    InvalidRequest,
    LimitExceeded,
    SendNotFound,
    WorkerLost,
)
from gradmesh.protos.limits import check_text
from gradmesh.sdk.autograd.current import active_share

if TYPE_CHECKING:
    from gradmesh.sdk.autograd.context import Context


MessageId: TypeAlias = tuple[str, int]
"""Name of the sender, and its own count within the context."""

Sends: TypeAlias = dict[str, list[int]]
"""Counts of messages by their sender."""


@final
class Lineage:
    """Hold the recorded messages of one context and their lineage; not thread-safe.

    Args:
        worker: Name of this process.
        incarnation: Its incarnation.
    """

    def __init__(self, worker: str, incarnation: int) -> None:
        self._worker = worker
        self._made_from: dict[MessageId, tuple[MessageId, ...]] = {}
        self._links = 0
        self._known: dict[str, set[MessageId]] = {}
        self._workers: dict[str, worker_pb2.WorkerId] = {
            worker: worker_pb2.WorkerId(name=worker, incarnation=incarnation)
        }

    def __len__(self) -> int:
        return len(self._made_from)

    def worker(self, name: str) -> worker_pb2.WorkerId:
        """Return a worker by name; it must have a recorded message."""
        return self._workers[name]

    def note(
        self,
        into: autograd_pb2.Lineage,
        count: int,
        made_from: Collection[MessageId],
        receiver: str,
    ) -> None:
        """Add a message of this process.

        Args:
            into: Filled with the lineage to send.
            count: This worker's number of the message.
            made_from: The messages that its tensors were computed from.
            receiver: The receiver.

        Raises:
            InvalidRequest: The context has grown too large.
        """
        message = (self._worker, count)
        self._made_from[message] = tuple(sorted(made_from) if len(made_from) > 1 else made_from)
        if len(self._made_from) > limits.MAX_LINEAGE:
            raise InvalidRequest(
                f"a context of more than {limits.MAX_LINEAGE} messages with gradients; "
                "open a new context for each step",
                max_lineage=limits.MAX_LINEAGE,
            )
        into.workers.append(self._workers[self._worker])
        if not made_from:
            into.messages.extend((0, count, 0))
            return
        known = self._known.get(receiver, ())
        places: dict[str, int] = {self._worker: 0}
        records: list[int] = []
        stack, seen = [message], {message}
        while stack:
            name, number = current = stack.pop()
            before = self._made_from[current]
            records += (places.setdefault(name, len(places)), number, len(before))
            for parent in before:
                records += (places.setdefault(parent[0], len(places)), parent[1])
                if parent not in seen and parent not in known and parent[0] != receiver:
                    seen.add(parent)
                    stack.append(parent)
        into.workers.extend([self._workers[name] for name in places if places[name]])
        into.messages.extend(records)

    def learn(self, lineage: autograd_pb2.Lineage, sender: str) -> None:
        """Add the lineage received with a message.

        Raises:
            InvalidFrame: It is malformed.
            WorkerLost: It names a worker that has restarted since the context began.
            LimitExceeded: The context has grown too large.
        """
        # An entry of the records is a number of a message, or one of its links.
        limits.LINEAGE_LINKS.check(self._links, more=len(lineage.messages))
        limits.WORKERS_OF_CONTEXT.check(len(self._workers), more=len(lineage.workers) - 1)
        names = self._learn_workers(lineage.workers)
        if not names or names[0] != sender:
            raise InvalidFrame(f"a lineage of {names[:1]} from {sender!r}")
        known = self._known.setdefault(sender, set())
        records = lineage.messages
        self._links += len(records)
        at, end = 0, len(records)
        try:
            while at < end:
                begin, at = at + 3, at + 3 + 2 * records[at + 2]
                if at > end:
                    raise IndexError
                pairs = records[begin:at]
                message = (names[records[begin - 3]], records[begin - 2])
                before = tuple([(names[pairs[i]], pairs[i + 1]) for i in range(0, len(pairs), 2)])
                known.add(message)
                known.update(before)
                self._made_from.setdefault(message, before)
        except IndexError:
            raise InvalidFrame(f"a lineage from {sender!r} that is cut off") from None
        if len(self._made_from) > limits.MAX_LINEAGE:
            raise _too_many_messages()

    def _learn_workers(self, workers: Iterable[worker_pb2.WorkerId]) -> list[str]:
        names = []
        for worker in workers:
            if len(worker.name) > limits.MAX_NAME_BYTES:
                check_text("name of a worker", worker.name, limits.MAX_NAME_BYTES)
            held = self._workers.setdefault(worker.name, worker)
            if held.incarnation != worker.incarnation:
                raise WorkerLost(
                    f"{worker.name} has restarted since the context began; open a new context",
                    worker=worker.name,
                )
            names.append(worker.name)
        return names

    def sends_behind(self, messages: Iterable[MessageId]) -> Sends:
        """Return some messages and all their ancestors, by sender.

        Raises:
            InvalidFrame: A message was named but never described.
        """
        stack = list(messages)
        seen = set(stack)
        while stack:
            for parent in self._behind(stack.pop()):
                if parent not in seen:
                    seen.add(parent)
                    stack.append(parent)
        sends: Sends = {}
        for name, count in sorted(seen):
            sends.setdefault(name, []).append(count)
        return sends

    def _behind(self, message: MessageId) -> tuple[MessageId, ...]:
        found = self._made_from.get(message)
        if found is None:
            raise InvalidFrame(f"message {message[1]} of {message[0]} was never described")
        return found


def _too_many_messages() -> LimitExceeded:
    return LimitExceeded(
        f"a context of more than {limits.MAX_LINEAGE} messages with gradients; open a new context "
        "for each step",
        limit="messages of a context",
        most=limits.MAX_LINEAGE,
    )


@final
class SendRecord:
    """Record a message that this process sent.

    Args:
        count: Its number.
        receiver: The receiver.
        entry: Where its gradients enter the graph.
    """

    __slots__ = ("count", "entry", "receiver")

    def __init__(self, count: int, receiver: str, entry: GradientEntry) -> None:
        self.count = count
        self.receiver = receiver
        self.entry = entry

    def describe(self, worker: str) -> str:
        """Describe the message, for errors."""
        shapes = ", ".join(str(shape) for shape, _ in self.entry.tensors)
        return f"message {self.count} from {worker} to {self.receiver}, tensors of shape {shapes}"


@final
class RecvRecord:
    """Record a received message; the origin of its tensors.

    Args:
        ctx: The context.
        sender: The sender.
        count: The sender's number of it.
        like: Shape and dtype of each of its tensors that require gradients.
    """

    __slots__ = ("count", "ctx", "like", "sender")

    def __init__(
        self, ctx: "Context", sender: str, count: int, like: list[tuple[tuple[int, ...], Any]]
    ) -> None:
        self.ctx = ctx
        self.sender = sender
        self.count = count
        self.like = like

    @property
    def id(self) -> MessageId:
        """The message as all processes name it."""
        return self.sender, self.count

    def give_back(self, grads: list[Any]) -> None:
        """Send the gradients to the worker that sent the tensors."""
        active_share(self.ctx, f"tensors from {self.sender}").send_back(self, grads)


@final
class ContextMessages:
    """Hold the send and receive records of one context on this process.

    Args:
        ctx: The context.
        worker: Name of this process.
        incarnation: Its incarnation.
    """

    def __init__(self, ctx: "Context", worker: str, incarnation: int) -> None:
        # A reference cycle would keep its arrays until the garbage collector runs.
        self._owner = weakref.ref(ctx)
        self._worker = worker
        self._lock = threading.Lock()  # guards all below
        self._lineage = Lineage(worker, incarnation)
        self._count = 0
        # Sequence of the oldest received node: what is older cannot lead to one.
        self._since = sys.maxsize
        self.sent: dict[int, SendRecord] = {}
        self.received: list[ReceiveNode] = []
        self.known_by: set[str] = set()

    @property
    def _ctx(self) -> "Context":
        ctx = self._owner()
        assert ctx is not None  # it holds this object
        return ctx

    def send(self, tensors: Sequence[Tensor], receiver: str) -> autograd_pb2.AutogradNote:
        """Record a message that is about to be sent.

        Args:
            tensors: Those that require gradients.
            receiver: Who gets it.
        """
        note = autograd_pb2.AutogradNote(context=self._ctx.id, mark=self._ctx.mark)
        with self._lock:
            self.known_by.add(receiver)
            if not tensors:
                return note
            self._count = note.message = self._count + 1
            made_from = self._behind(tensors)
            self._lineage.note(note.lineage, self._count, made_from, receiver)
            self.sent[self._count] = SendRecord(self._count, receiver, GradientEntry(tensors))
        return note

    def receive(
        self, note: autograd_pb2.AutogradNote, tensors: Sequence[Tensor], sender: str
    ) -> None:
        """Record a received message; link its tensors to their origin."""
        with self._lock:
            if sender not in self.known_by:
                limits.WORKERS_OF_CONTEXT.check(len(self.known_by))
                check_text("name of a worker", sender, limits.MAX_NAME_BYTES)
                self.known_by.add(sender)
            if not note.message:
                return
            if len(self.received) >= limits.MAX_LINEAGE:
                raise _too_many_messages()
            self._lineage.learn(note.lineage, sender)
        wanted = [tensor for tensor in tensors if tensor.requires_grad]
        if not wanted:
            raise InvalidFrame(f"a message of {sender} with a lineage but no gradients")
        like = [(tensor.shape, tensor.dtype) for tensor in wanted]
        origin = RecvRecord(self._ctx, sender, note.message, like)
        node = receive(wanted, origin)
        with self._lock:
            self.received.append(node)
            self._since = min(self._since, node.sequence)

    def _behind(self, tensors: Sequence[Tensor]) -> set[MessageId]:
        """Return the received messages that some tensors were computed from."""
        if not self.received:
            return set()
        nodes = find_receive_nodes(tensors, self._since)
        return {
            node.origin.id
            for node in nodes
            if type(node.origin) is RecvRecord and node.origin.ctx is self._ctx
        }

    def plan(self, roots: Sequence[Tensor]) -> Sends:
        """Return the sends of all workers that a backward from some tensors reaches."""
        with self._lock:
            return self._lineage.sends_behind(self._behind(roots))

    def worker(self, name: str) -> Any:
        """Return this worker, or one that messages with gradients came from."""
        with self._lock:
            return self._lineage.worker(name)

    def find(self, count: int) -> SendRecord:
        """Return the record of a message that this process sent.

        Raises:
            SendNotFound: There is none.
        """
        with self._lock:
            found = self.sent.get(count)
        if found is None:
            raise SendNotFound(
                f"{self._worker} sent no message {count} in {self._ctx}; it may have restarted",
                worker=self._worker,
                message=count,
            )
        return found

    def all_sent(self) -> list[SendRecord]:
        """Return the records of all messages sent so far."""
        with self._lock:
            return list(self.sent.values())

    def clear(self) -> set[str]:
        """Drop all records; return the workers that take part in the context."""
        with self._lock:
            self.sent.clear()
            self.received.clear()
            workers, self.known_by = self.known_by, set()
            return workers

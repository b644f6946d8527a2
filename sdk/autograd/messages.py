"""The messages of a context that this process sent and received."""

import sys
import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, final

from gradmesh.engine.autograd import GradientEntry, ReceiveNode, Tensor, receive
from gradmesh.engine.autograd.local_pass import find_receive_nodes
from gradmesh.protos.common.v1 import autograd_pb2
from gradmesh.protos.errors import InvalidFrame, SendNotFound
from gradmesh.sdk.autograd.active import active_part
from gradmesh.sdk.autograd.lineage import Lineage, MessageId, Sends

if TYPE_CHECKING:
    from gradmesh.sdk.autograd.context import Context


@final
class Sent:
    """A message that left this process.

    Args:
        count: Our own count.
        receiver: Who got it.
        entry: Where its gradients enter the graph.
    """

    __slots__ = ("count", "entry", "receiver")

    def __init__(self, count: int, receiver: str, entry: GradientEntry) -> None:
        self.count = count
        self.receiver = receiver
        self.entry = entry

    def describe(self, worker: str) -> str:
        """Name the message for people."""
        shapes = ", ".join(str(shape) for shape, _ in self.entry.tensors)
        return f"message {self.count} from {worker} to {self.receiver}, tensors of shape {shapes}"


@final
class ReceivedMessage:
    """A message that came here; the origin of its tensors.

    Args:
        ctx: The context.
        sender: Who sent it.
        count: The sender's own count.
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
        """Send the gradients to where the tensors came from."""
        active_part(self.ctx, f"tensors from {self.sender}").send_back(self, grads)


@final
class Messages:
    """Sends and receives of one context on this process.

    Args:
        ctx: The context.
        worker: Name of this process.
        incarnation: Its incarnation.
    """

    def __init__(self, ctx: "Context", worker: str, incarnation: int) -> None:
        # A cycle would keep its arrays until the collector comes.
        self._owner = weakref.ref(ctx)
        self._worker = worker
        self._lock = threading.Lock()  # guards all below
        self._lineage = Lineage(worker, incarnation)
        self._count = 0
        # Sequence of the oldest received node: what is older cannot lead to one.
        self._since = sys.maxsize
        self.sent: dict[int, Sent] = {}
        self.received: list[ReceiveNode] = []
        self.peers: set[str] = set()

    @property
    def _ctx(self) -> "Context":
        ctx = self._owner()
        assert ctx is not None  # it has us
        return ctx

    def send(self, tensors: Sequence[Tensor], receiver: str) -> autograd_pb2.AutogradNote:
        """Record a message that is about to leave.

        Args:
            tensors: Those that require gradients.
            receiver: Who gets it.
        """
        note = autograd_pb2.AutogradNote(context=self._ctx.id, mark=self._ctx.mark)
        with self._lock:
            self.peers.add(receiver)
            if not tensors:
                return note
            self._count = note.message = self._count + 1
            made_from = self._behind(tensors)
            self._lineage.note(note.lineage, self._count, made_from, receiver)
            self.sent[self._count] = Sent(self._count, receiver, GradientEntry(tensors))
        return note

    def receive(
        self, note: autograd_pb2.AutogradNote, tensors: Sequence[Tensor], sender: str
    ) -> None:
        """Record a message that arrived; wire its tensors to where they came from."""
        with self._lock:
            self.peers.add(sender)
            if not note.message:
                return
            self._lineage.learn(note.lineage, sender)
        wanted = [tensor for tensor in tensors if tensor.requires_grad]
        if not wanted:
            raise InvalidFrame(f"a message of {sender} with a lineage but no gradients")
        like = [(tensor.shape, tensor.dtype) for tensor in wanted]
        origin = ReceivedMessage(self._ctx, sender, note.message, like)
        node = receive(wanted, origin)
        with self._lock:
            self.received.append(node)
            self._since = min(self._since, node.sequence)

    def _behind(self, tensors: Sequence[Tensor]) -> set[MessageId]:
        """Return the received messages that some tensors were made from."""
        if not self.received:
            return set()
        nodes = find_receive_nodes(tensors, self._since)
        return {
            node.origin.id
            for node in nodes
            if type(node.origin) is ReceivedMessage and node.origin.ctx is self._ctx
        }

    def plan(self, roots: Sequence[Tensor]) -> Sends:
        """Return the sends of all workers that a backward from some tensors reaches."""
        with self._lock:
            return self._lineage.sends_behind(self._behind(roots))

    def worker(self, name: str) -> Any:
        """Return a worker that messages with gradients were heard from, or ourselves."""
        with self._lock:
            return self._lineage.worker(name)

    def find(self, count: int) -> Sent:
        """Return a message of ours.

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

    def all_sent(self) -> list[Sent]:
        """Return everything sent so far."""
        with self._lock:
            return list(self.sent.values())

    def clear(self) -> set[str]:
        """Forget everything; return who else knows the context."""
        with self._lock:
            self.sent.clear()
            self.received.clear()
            peers, self.peers = self.peers, set()
            return peers

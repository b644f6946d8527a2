"""What the messages of a context were made from: the graph between processes.

Every message with tensors that require gradients says which messages its tensors were made from,
and those which, and so on. So whoever begins a backward pass knows, without asking anybody, which
gradients will flow and who takes part.

A note carries only what the receiver may not know yet. A worker knows what it sent itself, and it
knows whatever it named in a note of its own, with everything behind that. Repeated calls between
two workers therefore cost a few bytes each, however long the chain behind them.
"""

from collections.abc import Collection, Iterable
from typing import TypeAlias, final

from gradmesh.protos import limits
from gradmesh.protos.common.v1 import autograd_pb2, worker_pb2
from gradmesh.protos.errors import InvalidFrame, InvalidRequest, WorkerLost

MessageId: TypeAlias = tuple[str, int]
"""Name of the sender, and its own count within the context."""

Sends: TypeAlias = dict[str, list[int]]
"""Counts of messages by their sender."""


@final
class Lineage:
    """The messages of one context that this process has heard of; not for several threads at once.

    Args:
        worker: Name of this process.
        incarnation: Its incarnation.
    """

    def __init__(self, worker: str, incarnation: int) -> None:
        self._worker = worker
        self._made_from: dict[MessageId, tuple[MessageId, ...]] = {}
        self._known: dict[str, set[MessageId]] = {}
        self._workers: dict[str, worker_pb2.WorkerId] = {
            worker: worker_pb2.WorkerId(name=worker, incarnation=incarnation)
        }

    def __len__(self) -> int:
        return len(self._made_from)

    def worker(self, name: str) -> worker_pb2.WorkerId:
        """Return a worker that messages were heard from."""
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
            into: Gets what travels with it.
            count: Our own count of the message.
            made_from: The messages that its tensors were made from.
            receiver: Who gets it.

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
        """Take in what came with a message.

        Raises:
            InvalidFrame: It makes no sense.
            WorkerLost: It speaks of a worker that has restarted since the context began.
        """
        names = self._learn_workers(lineage.workers)
        if not names or names[0] != sender:
            raise InvalidFrame(f"a lineage of {names[:1]} from {sender!r}")
        known = self._known.setdefault(sender, set())
        records = lineage.messages
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
            raise InvalidFrame(f"a context of more than {limits.MAX_LINEAGE} messages")

    def _learn_workers(self, workers: Iterable[worker_pb2.WorkerId]) -> list[str]:
        names = []
        for worker in workers:
            held = self._workers.setdefault(worker.name, worker)
            if held.incarnation != worker.incarnation:
                raise WorkerLost(
                    f"{worker.name} has restarted since the context began; open a new context",
                    worker=worker.name,
                )
            names.append(worker.name)
        return names

    def sends_behind(self, messages: Iterable[MessageId]) -> Sends:
        """Return all messages that some messages were made from, and these, by their senders.

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

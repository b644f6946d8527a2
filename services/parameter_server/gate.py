"""What a server lets in while buckets change hands.

Calls pass a gate that is open but for a moment of a reshard. First it keeps out what would begin
something, then what would change rows, last what would read them; whatever is kept out waits, and
finds the gate open again under the new map, or under the old one.
"""

import threading
from collections.abc import Callable, Iterable
from enum import IntEnum
from types import TracebackType
from typing import Self, final

from gradmesh.protos.errors import DeadlineExceeded, Draining, ShardNotReady, StaleShardMap
from gradmesh.protos.sharding import ShardMap
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.services.parameter_server.registry import TableRegistry
from gradmesh.services.parameter_server.table import TableShard


class Kind(IntEnum):
    """What a call is about to do; the gate keeps out all up to a kind."""

    NOTHING = 0
    """Keeps out nobody."""
    BEGINS = 1
    """Opens a context that will bring gradients."""
    CHANGES = 2
    """Changes rows, or which rows there are."""
    READS = 3
    """Reads rows."""


@final
class _Pass:
    """A call on its way; a context manager.

    Args:
        gate: The gate.
        kind: What the call does.
        deadline: How long it may wait.
    """

    __slots__ = ("_deadline", "_gate", "_kind")

    def __init__(self, gate: "Gate", kind: Kind, deadline: Deadline) -> None:
        self._gate = gate
        self._kind = kind
        self._deadline = deadline

    def __enter__(self) -> Self:
        self._gate._enter(self._kind, self._deadline)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._gate._leave(self._kind)


@final
class Gate:
    """The gate of one server.

    Args:
        name: Name of the server.
        max_waiters: Calls that may wait at once; the others are told to ask again.
    """

    def __init__(self, name: str, max_waiters: int) -> None:
        self._name = name
        self._max_waiters = max_waiters
        self._changed = threading.Condition()  # guards all below
        self._shut = Kind.NOTHING
        self._inside = [0] * len(Kind)
        self._waiters = 0
        self._closed = False

    def passing(self, kind: Kind, deadline: Deadline) -> _Pass:
        """Return what lets a call in, and counts it until it is out.

        Raises:
            ShardNotReady: Buckets were still changing hands when time was up.
        """
        return _Pass(self, kind, deadline)

    def _enter(self, kind: Kind, deadline: Deadline) -> None:
        with self._changed:
            if kind <= self._shut:
                self._wait(kind, deadline)
            self._inside[kind] += 1

    def _wait(self, kind: Kind, deadline: Deadline) -> None:
        self._waiters += 1
        until = deadline.to_answer()
        try:
            while kind <= self._shut:
                if self._closed:
                    raise Draining(f"{self._name} is leaving; ask again", worker=self._name)
                if until.passed or self._waiters > self._max_waiters:
                    raise ShardNotReady(
                        f"{self._name} is handing buckets over to other servers; ask again",
                        worker=self._name,
                    )
                self._changed.wait(until.remaining_s())
        finally:
            self._waiters -= 1

    def _leave(self, kind: Kind) -> None:
        with self._changed:
            self._inside[kind] -= 1
            if kind <= self._shut:
                self._changed.notify_all()

    def shut(self, kind: Kind, timeout_s: float) -> None:
        """Keep out all up to a kind, and wait until those that are inside are out.

        Raises:
            DeadlineExceeded: They are not; the gate stays shut.
        """
        with self._changed:
            self._shut = kind
            if not self._changed.wait_for(lambda: not sum(self._inside[: kind + 1]), timeout_s):
                raise DeadlineExceeded(
                    f"calls on {self._name} did not come to an end within {timeout_s:g} s"
                )

    def open(self) -> None:
        """Let everybody in; may be called twice."""
        with self._changed:
            self._shut = Kind.NOTHING
            self._changed.notify_all()

    def close(self) -> None:
        """End all waits, so that the process can end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def kind_of_lookup(tables: Iterable[TableShard], *, begins: bool, peek: bool) -> Kind:
    """Return what a lookup does.

    Args:
        tables: Whose rows are looked up.
        begins: Whether it opens a context outside a run.
        peek: Whether it changes nothing at all.
    """
    if peek:
        return Kind.READS
    if begins:
        return Kind.BEGINS
    return Kind.CHANGES if any(table.counts_uses for table in tables) else Kind.READS


@final
class Epochs:
    """Compares callers' maps with the current one.

    Args:
        name: Name of this server.
        shard_map: Returns the current map; given the epoch that a caller used, if any.
        registry: Whose tables must hold what the map says.
    """

    def __init__(
        self,
        name: str,
        shard_map: Callable[[int | None, Deadline], ShardMap],
        registry: TableRegistry,
    ) -> None:
        self._name = name
        self._shard_map = shard_map
        self._registry = registry
        # The newest map that gives this server the buckets that it holds.
        self._checked = 0
        # Maps before this one gave it others.
        self._least = 0
        # From this one on it holds others than now; they are on their way.
        self._next: int | None = None

    def check(self, epoch: int, deadline: Deadline) -> None:
        """Return if a caller's map is the current one.

        Raises:
            StaleShardMap: It is not.
            ShardNotReady: This server is about to adopt the current one.
            ShardMismatch: This server holds other buckets than the current one says.
        """
        self.recheck(epoch)
        shards = self._shard_map(epoch, deadline)
        current = shards.epoch
        if self._next is not None and current >= self._next:
            raise ShardNotReady(f"{self._name} is adopting shard map {current}; ask again")
        if current != self._checked:
            self._registry.check_owned(shards)
            self._checked = current
        if epoch != current:
            raise self._stale(epoch, current)

    def recheck(self, epoch: int) -> None:
        """Return if buckets have not changed hands since a caller's map was the current one.

        Raises:
            StaleShardMap: They have.
        """
        if epoch < self._least:
            raise self._stale(epoch, self._least)

    def expect(self, epoch: int | None) -> None:
        """Take notice that a map with other buckets will come; None for none."""
        self._next = epoch

    def advance(self, epoch: int) -> None:
        """Take notice that the tables hold what a map says that has just come."""
        self._least, self._next = epoch, None

    def _stale(self, epoch: int, current: int) -> StaleShardMap:
        return StaleShardMap(
            f"the ids were routed with shard map {epoch}, {current} is current on {self._name}",
            epoch=epoch,
            current=current,
        )

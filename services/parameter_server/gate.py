"""Which calls a server admits while buckets migrate.

Every call passes a gate, which is open except for the last phases of a reshard. The gate first
holds calls that would open a context, then calls that would change rows, last calls that would read
them. A held call waits until the gate opens again, under the new shard map or under the old one.
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
    """The effect of a call; the gate holds all calls up to a kind."""

    NOTHING = 0
    """Holds no call."""
    BEGINS = 1
    """Opens a context that will send gradients."""
    CHANGES = 2
    """Changes rows, or which rows exist."""
    READS = 3
    """Reads rows."""


@final
class _Pass:
    """A call that passes the gate; a context manager.

    Args:
        gate: The gate.
        kind: Effect of the call.
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
        max_waiters: Calls that may wait at once; the others are refused and repeated.
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
        """Return a context manager that waits for the gate, and counts the call while it runs.

        Raises:
            ShardNotReady: Buckets still migrate at the deadline.
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
        """Hold all calls up to a kind, and wait until those inside have ended.

        Raises:
            DeadlineExceeded: They have not ended; the gate stays shut.
        """
        with self._changed:
            self._shut = kind
            if not self._changed.wait_for(lambda: not sum(self._inside[: kind + 1]), timeout_s):
                raise DeadlineExceeded(
                    f"calls on {self._name} did not finish within {timeout_s:g} s"
                )

    def open(self) -> None:
        """Admit all calls; may be called twice."""
        with self._changed:
            self._shut = Kind.NOTHING
            self._changed.notify_all()

    def close(self) -> None:
        """End all waits, so that the process can end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def kind_of_lookup(tables: Iterable[TableShard], *, begins: bool, peek: bool) -> Kind:
    """Return the kind of a lookup.

    Args:
        tables: Tables whose rows are looked up.
        begins: Whether it opens a context outside a run.
        peek: Whether it changes nothing.
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
        registry: The tables, which must hold the buckets of the map.
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
        # The newest map that assigns to this server the buckets that it holds.
        self._checked = 0
        # Maps before this one assign other buckets to it.
        self._least = 0
        # From this map on it holds other buckets, which are migrating.
        self._next: int | None = None

    def check(self, epoch: int, deadline: Deadline) -> None:
        """Raise unless a caller's map is the current one.

        Raises:
            StaleShardMap: It is not the current one.
            ShardNotReady: This server is about to adopt the current one.
            ShardMismatch: This server holds other buckets than the current map assigns.
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
        """Raise if buckets have migrated since a caller's map was the current one.

        Raises:
            StaleShardMap: They have migrated.
        """
        if epoch < self._least:
            raise self._stale(epoch, self._least)

    def expect(self, epoch: int | None) -> None:
        """Set the epoch of the next map, which has other buckets; None for none."""
        self._next = epoch

    def advance(self, epoch: int) -> None:
        """Record that the tables hold the buckets of a new map."""
        self._least, self._next = epoch, None

    def _stale(self, epoch: int, current: int) -> StaleShardMap:
        return StaleShardMap(
            f"the ids were routed with shard map {epoch}, {current} is current on {self._name}",
            epoch=epoch,
            current=current,
        )

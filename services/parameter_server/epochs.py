"""Whether a caller routed its ids with the map that this server goes by."""

from collections.abc import Callable
from typing import final

from gradmesh.protos.errors import ShardNotReady, StaleShardMap
from gradmesh.protos.sharding import ShardMap
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.services.parameter_server.shelf import Shelf


@final
class Epochs:
    """Compares callers' maps with the current one.

    Args:
        name: Name of this server.
        shard_map: Returns the current map; given the epoch that a caller used, if any.
        shelf: Whose tables must hold what the map says.
    """

    def __init__(
        self, name: str, shard_map: Callable[[int | None, Deadline], ShardMap], shelf: Shelf
    ) -> None:
        self._name = name
        self._shard_map = shard_map
        self._shelf = shelf
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
            self._shelf.check_owned(shards)
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

"""A coordinator that is reached at one of several addresses, and may be restarting."""

from collections.abc import Callable, Sequence
from typing import TypeVar, final

from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.protos.errors import DeadlineExceeded, Unreachable
from gradmesh.sdk.mesh.coordinator import Coordinator
from gradmesh.sdk.transport.channel import Channel
from gradmesh.sdk.transport.deadline import Deadline

T = TypeVar("T")

# Longest that one address is given while there are others.
_TURN_S = 2.0


@final
class Coordinators:
    """Asks the address that answered last; when it does not, the others in turn.

    Args:
        channels: One for each address.
    """

    def __init__(self, channels: Sequence[Channel]) -> None:
        self._channels = list(channels)
        self._coordinators = [Coordinator(channel) for channel in channels]
        self._at = 0

    @property
    def address(self) -> str:
        """Where the one is that answered last."""
        return self._coordinators[self._at].address

    def get_shard_map(self, deadline: Deadline) -> table_pb2.ShardMap:
        """Wait for the parameter servers and read where rows are."""
        return self._ask(Coordinator.get_shard_map, deadline)

    def describe_table(self, name: str, deadline: Deadline) -> table_pb2.TableSpec:
        """Read a table's specification."""
        return self._ask(lambda one, until: one.describe_table(name, until), deadline)

    def list_tables(self, deadline: Deadline) -> list[table_pb2.TableSpec]:
        """Read the catalogue."""
        return self._ask(Coordinator.list_tables, deadline)

    def _ask(self, call: Callable[[Coordinator, Deadline], T], deadline: Deadline) -> T:
        if len(self._coordinators) == 1:
            return call(self._coordinators[0], deadline)
        while True:
            at = self._at
            turn = Deadline.after(min(_TURN_S, deadline.remaining_s()))
            try:
                return call(self._coordinators[at], turn)
            except (DeadlineExceeded, Unreachable):
                if deadline.remaining_s() <= 0:
                    raise
            self._at = (at + 1) % len(self._coordinators)

    def close(self) -> None:
        """Close all connections."""
        for channel in self._channels:
            channel.close()

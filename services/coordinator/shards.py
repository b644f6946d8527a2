"""Which parameter server holds which bucket. Pure."""

from typing import final

from gradmesh.protos.coordinator.v1 import membership_pb2, table_pb2
from gradmesh.protos.errors import ShardNotReady
from gradmesh.protos.limits import natural_key
from gradmesh.protos.sharding import even_buckets


@final
class Shards:
    """The shard map, made anew whenever a parameter server comes or changes.

    Args:
        count: How many parameter servers hold the tables.
        memory: The map before a restart of the coordinator, as bytes; empty at first.
    """

    def __init__(self, count: int, memory: bytes = b"") -> None:
        self._count = count
        self.map = table_pb2.ShardMap.FromString(memory)

    @property
    def count(self) -> int:
        """How many parameter servers hold the tables."""
        return self._count

    def replace(self, map_: table_pb2.ShardMap) -> None:
        """Take a map in which buckets have moved; from now on as many servers are expected."""
        self._count = len(map_.shards)
        self.map = map_

    def refresh(self, servers: list[membership_pb2.Member]) -> bool:
        """Make the map fit the parameter servers; return whether its epoch advanced.

        A server keeps its shard as long as it lives, whoever else comes: its rows are those of
        that shard. Servers beyond the expected number wait for a gap.
        """
        if len(servers) < self._count:
            return False
        chosen = self._choose({member.name: member for member in servers})
        shards = [
            table_pb2.Shard(name=m.name, address=m.address, incarnation=m.incarnation)
            for m in chosen
        ]
        if list(self.map.shards) == shards:
            return False
        buckets = self.map.bucket_shards if self._fits else even_buckets(self._count)
        self.map = table_pb2.ShardMap(
            epoch=self.map.epoch + 1, shards=shards, bucket_shards=buckets
        )
        return True

    @property
    def _fits(self) -> bool:
        return len(self.map.shards) == self._count

    def _choose(self, alive: dict[str, membership_pb2.Member]) -> list[membership_pb2.Member]:
        held = [shard.name for shard in self.map.shards] if self._fits else [""] * self._count
        spare = iter(sorted(alive.keys() - set(held), key=natural_key))
        return [alive[name if name in alive else next(spare)] for name in held]

    def current(self, servers: list[membership_pb2.Member]) -> table_pb2.ShardMap:
        """Return the map.

        Raises:
            ShardNotReady: A parameter server of the map is missing.
        """
        alive = {member.name for member in servers}
        held = {shard.name for shard in self.map.shards}
        if len(held) != self._count or not held <= alive:
            raise ShardNotReady(
                f"{len(alive)} of {self._count} parameter servers are here: "
                f"{', '.join(sorted(alive, key=natural_key)) or 'none'}; start the others",
                present=len(alive),
                expected=self._count,
            )
        return self.map

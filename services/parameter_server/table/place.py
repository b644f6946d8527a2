"""Which part of a table is here: the buckets of one shard."""

from dataclasses import dataclass
from typing import Self, final

import numpy as np
from numpy.typing import NDArray

from gradmesh.protos.errors import StaleShardMap
from gradmesh.protos.sharding import BUCKETS, ShardMap


@final
@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """The buckets of one shard, numbered.

    Args:
        local: int32 [BUCKETS], the number here of each bucket; -1 for those of other servers.
        count: How many are here.
    """

    local: NDArray[np.int32]
    count: int

    @classmethod
    def of(cls, shards: ShardMap, shard: int) -> Self:
        """Return the place of a shard."""
        here = np.asarray(shards.bucket_shards) == shard
        local = np.where(here, np.cumsum(here) - 1, -1).astype(np.int32)
        return cls(local, int(here.sum()))

    @property
    def is_everything(self) -> bool:
        """Whether this is the only shard."""
        return self.count == BUCKETS

    def refuse(self, table: str, id_: int) -> StaleShardMap:
        """Return the error for an id that is not here."""
        return StaleShardMap(
            f"table {table!r}: id {id_} lives on another server; fetch the shard map and route "
            "again",
            table=table,
            id=id_,
        )

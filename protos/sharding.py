"""The mapping from ids to buckets and from buckets to shards, computed by clients without a call.

Ids hash to a fixed number of buckets, and a shard map assigns the buckets to parameter servers.
Because buckets move, not single rows, the number of servers can change later.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

BUCKETS = 4096
"""Buckets of every table; part of the contract."""

Ids: TypeAlias = NDArray[np.int64]


def buckets_of(ids: Ids) -> NDArray[np.int64]:
    """Return the bucket of each id: the upper 12 bits of splitmix64's finalizer.

    The hash maps of the servers use the lower bits, and would degenerate if all ids of a server
    agreed in them.
    """
    x = ids.astype(np.uint64)
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return (x >> np.uint64(52)).astype(np.int64)


def even_buckets(shards: int) -> list[int]:
    """Return a shard for each bucket, as evenly as possible."""
    return [bucket * shards // BUCKETS for bucket in range(BUCKETS)]


def rebalance(held: Sequence[int], shards: int) -> list[int]:
    """Return a shard for each bucket, as evenly as possible with as few moves as possible.

    Args:
        held: The shard that holds each bucket now, numbered as in the result; -1 where it is not
            part of the result.
        shards: Number of shards of the result.
    """
    quotas = [BUCKETS // shards + (shard < BUCKETS % shards) for shard in range(shards)]
    counts = [0] * shards
    found = []
    for shard in held:
        kept = shard >= 0 and counts[shard] < quotas[shard]
        found.append(shard if kept else -1)
        counts[shard] += kept
    free = (shard for shard in range(shards) for _ in range(quotas[shard] - counts[shard]))
    return [next(free) if shard < 0 else shard for shard in found]


@dataclass(frozen=True, slots=True, eq=False)
class ShardMap:
    """A shard map as clients use it.

    Args:
        epoch: Version of the map.
        names: The parameter servers; a shard is an index into it.
        addresses: Where each of them is.
        bucket_shards: int32 [BUCKETS], the shard of each bucket.
    """

    epoch: int
    names: Sequence[str]
    addresses: Sequence[str]
    bucket_shards: NDArray[np.int32]

    def shards_of(self, ids: Ids) -> NDArray[np.int32]:
        """Return the shard of each id."""
        return self.bucket_shards[buckets_of(ids)]

    def owned_by(self, name: str) -> NDArray[np.bool_]:
        """Return for each bucket whether a server holds it; all False if it is not in the map."""
        shard = list(self.names).index(name) if name in self.names else -1
        owned: NDArray[np.bool_] = np.asarray(self.bucket_shards) == shard
        return owned

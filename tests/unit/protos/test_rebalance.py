"""Buckets stay even, and the fewest possible move."""

from hypothesis import given
from hypothesis import strategies as st

from gradmesh.protos.sharding import BUCKETS, even_buckets, rebalance


def quota(shards):
    return BUCKETS // shards


@given(st.integers(1, 64), st.integers(1, 64))
def test_sizes_are_even_and_little_moves(before, after):
    held = [shard if shard < after else -1 for shard in even_buckets(before)]

    found = rebalance(held, after)

    sizes = [found.count(shard) for shard in range(after)]
    assert sum(sizes) == BUCKETS
    assert max(sizes) - min(sizes) <= 1
    moved = sum(old != new for old, new in zip(held, found, strict=True))
    if after >= before:
        assert moved <= (after - before) * (quota(after) + 1) + before
    else:
        assert moved <= (before - after) * (quota(before) + 1) + after


@given(st.lists(st.integers(1, 20), min_size=1, max_size=6))
def test_repeated_rebalancing_stays_even(counts):
    found = even_buckets(3)
    for count in counts:
        found = rebalance([shard if shard < count else -1 for shard in found], count)
    sizes = [found.count(shard) for shard in range(counts[-1])]
    assert max(sizes) - min(sizes) <= 1


def test_the_same_number_moves_nothing():
    assert rebalance(even_buckets(5), 5) == even_buckets(5)

"""Admission and eviction: which ids get a row, which lose it, and no id gets another's."""

import numpy as np
import pytest

from gradmesh.engine.kernels import bucket_index
from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.protos.sharding import BUCKETS, buckets_of
from gradmesh.sdk.table.spec import least_max_bytes

Recipe = table_pb2.Recipe
LEAST = least_max_bytes(16)


def ones(count):
    return np.ones((count, 4), np.float32)


def same_bucket(count):
    """Ids that share bucket 0."""
    ids = np.arange(BUCKETS * count * 2)
    return ids[buckets_of(ids) == 0][:count]


def test_an_id_is_admitted_at_its_kth_use(make_shards):
    shards = make_shards(admission=Recipe(name="frequency", settings={"count": 3}))
    table = shards.shards[0]
    first = shards.read([5])
    shards.push([5], ones(1))
    refused = (table.row_count, table.stats.dropped)

    shards.push([5], ones(1))

    assert refused == (0, 1)
    assert table.row_count == 1
    np.testing.assert_array_equal(shards.read([5]), first - 1)


def test_rare_ids_fade(make_shards):
    shards = make_shards(admission=Recipe(name="frequency", settings={"count": 2}))
    ids = np.arange(100_000)

    shards.read(ids)

    # Shared counters admit a few too early, never one too late.
    assert shards.shards[0].row_count < 200
    shards.read(ids)
    assert shards.shards[0].row_count == ids.size


def test_a_share_of_ids_is_admitted_whatever_the_shards(make_shards):
    recipe = Recipe(name="probability", settings={"share": 0.25})
    ids = np.arange(20_000)
    held = []
    for count in (1, 3):
        shards = make_shards(count, admission=recipe)
        shards.push(ids, ones(ids.size))
        held.append(set(shards.rows()))

    assert held[0] == held[1]
    assert 0.23 < len(held[0]) / ids.size < 0.27
    dropped = shards.read(np.array(sorted(set(ids.tolist()) - held[0])))
    np.testing.assert_array_equal(
        dropped, make_shards().read(np.array(sorted(set(ids.tolist()) - held[0])))
    )


@pytest.mark.parametrize(
    ("policy", "gone"),
    [("lru", 1), ("lfu", 2)],
)
def test_the_policy_chooses_the_evicted_rows(make_shards, policy, gone):
    shards = make_shards(eviction=Recipe(name=policy), max_bytes=4 * LEAST)
    ids = same_bucket(5)
    shards.read(ids[:4])
    shards.read(ids[[0, 1, 3]])
    shards.read(ids[[0, 3, 2, 0]][:3])
    shards.read(ids[[1]])
    shards.read(ids[[0, 3, 2]]) if policy == "lru" else shards.read(ids[[0, 1, 3]])

    shards.read(ids[[4]])

    assert set(shards.rows()) == set(np.delete(ids, gone).tolist())
    assert shards.shards[0].evicted == 1


def test_an_evicted_row_starts_from_its_initial_value(make_shards):
    shards = make_shards(eviction=Recipe(name="lru"), max_bytes=LEAST)
    table = shards.shards[0]
    first, second = same_bucket(2)
    initial = make_shards().read([first, second])
    late = table.slots_of(np.array([first]))
    table.read(late)
    shards.push([second], ones(1))

    table.apply(late, ones(1))

    assert set(shards.rows()) == {first}
    np.testing.assert_array_equal(shards.read([first]), initial[:1] - 1)
    np.testing.assert_array_equal(shards.read([second]), initial[1:])


def test_more_new_ids_in_a_request_than_fit_read_as_they_begin(make_shards):
    shards = make_shards(eviction=Recipe(name="lru"), max_bytes=LEAST)
    ids = np.arange(50_000)

    rows = shards.read(ids)
    shards.push(ids, ones(ids.size))

    np.testing.assert_array_equal(rows, make_shards().read(ids))
    held = shards.shards[0].row_count
    assert held <= BUCKETS
    assert shards.shards[0].stats.dropped == ids.size - held
    assert shards.shards[0].bytes <= LEAST + 1_500_000


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("policy", ["lru", "lfu", "ttl"])
def test_eviction_is_the_same_on_any_number_of_servers(make_shards, policy, count):
    settings = {"steps": 3} if policy == "ttl" else {}

    def train(servers):
        shards = make_shards(
            servers, eviction=Recipe(name=policy, settings=settings), max_bytes=3 * LEAST
        )
        rng = np.random.default_rng(1)
        for step in range(12):
            ids = np.unique(rng.zipf(1.2, 4000) % 40_000)
            shards.read(ids)
            shards.push(ids, rng.standard_normal((ids.size, 4), np.float32), step + 1)
        reads = shards.read(np.arange(40_000), peek=True)
        return reads, sum(shard.row_count for shard in shards.shards)

    reads, rows = train(count)

    alone, _ = train(1)
    np.testing.assert_array_equal(reads, alone)
    assert 0 < rows <= 3 * BUCKETS


def test_a_row_expires_when_unused_for_so_many_steps(make_shards):
    shards = make_shards(eviction=Recipe(name="ttl", settings={"steps": 2}))
    table = shards.shards[0]
    first = shards.read([1, 2])
    for step in (1, 2, 3, 4):
        shards.push([2], ones(1), step)
    shards.push([1], ones(1), 5)

    np.testing.assert_allclose(shards.read([1, 2]), first - [[1], [4]], rtol=1e-6)
    assert table.evicted == 1


def test_expired_rows_are_swept(make_shards):
    shards = make_shards(eviction=Recipe(name="ttl", settings={"steps": 2}))
    table = shards.shards[0]
    shards.read(np.arange(10_000))

    for step in range(1, BUCKETS // 32 + 4):
        shards.push([-1], ones(1), step)

    assert table.row_count == 1
    assert table.evicted == 10_000


def test_use_counters_wrap_and_keep_the_order():
    order = bucket_index._order
    values = np.array([0xFFFFFFFE, 0xFFFFFFFF, 0, 1], np.int64) << 32

    places = [int(order(bucket_index.LRU, value | 1, 1, 9)) for value in values]

    assert places == sorted(places)

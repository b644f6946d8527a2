"""Ids of many tables, deduped and brought into the order of their owners."""

import numpy as np
import pytest

from gradmesh.engine.kernels import route_ids, route_one
from gradmesh.protos.sharding import buckets_of, even_buckets

TABLES = {
    "one": [[3, 3, 1]],
    "empty": [[]],
    "empty among others": [[], [5, 5], []],
    "many": [list(np.random.default_rng(t).integers(0, 40, 100 + t)) for t in range(5)],
    "huge ids": [[2**62, 1, 2**62], [2**63 - 1, 0]],
}


def flatten(lists):
    ids = np.array([i for ids in lists for i in ids], np.int64)
    return ids, np.cumsum([0, *map(len, lists)]).astype(np.int64)


@pytest.mark.parametrize("owners", [1, 2, 3, 7])
@pytest.mark.parametrize("groups", ["together", "apart"])
@pytest.mark.parametrize("lists", TABLES.values(), ids=TABLES)
def test_each_id_finds_itself_where_its_owner_keeps_it(lists, owners, groups):
    ids, starts = flatten(lists)
    bucket_owners = np.asarray(even_buckets(owners), np.int32)
    group_of = np.arange(len(lists)) % 2 if groups == "apart" else np.zeros(len(lists), np.int64)

    order = np.argsort(group_of, kind="stable")
    bounds = np.array([[-(2**63)] * len(lists), [2**63 - 1] * len(lists)])
    count = int(group_of.max()) + 1
    wrong, distinct, inverse, (begins, counts), totals = route_ids(
        ids, starts, bounds, bucket_owners, owners, group_of, order, count
    )

    assert wrong == -1

    before = np.concatenate([[0], np.cumsum(totals)])
    table_of = np.repeat(np.arange(len(lists)), np.diff(starts))
    np.testing.assert_array_equal(distinct[before[group_of[table_of]] + inverse], ids)
    at = 0
    for group in np.unique(group_of):
        for owner in range(owners):
            for table in np.flatnonzero(group_of == group):
                mine = distinct[at : at + counts[owner, table]]
                wanted = dict.fromkeys(int(i) for i in lists[table])
                shards = bucket_owners[buckets_of(np.array(list(wanted), np.int64))]
                assert mine.tolist() == [
                    i for i, shard in zip(wanted, shards, strict=True) if shard == owner
                ]
                assert begins[owner, table] == at - before[group]
                at += mine.size
    assert at == distinct.size


def test_the_first_id_outside_its_table_is_found():
    ids, starts = flatten([[0, 4], [], [9, 3, -1]])

    firsts, lasts = np.zeros(3, np.int64), np.array([4, 0, 9])
    groups = np.zeros(3, np.int64)

    def wrong(firsts, lasts, owners):
        buckets = np.asarray(even_buckets(owners), np.int32)
        bounds = np.stack([firsts, lasts])
        return route_ids(ids, starts, bounds, buckets, owners, groups, np.arange(3), 1)[0]

    for owners in (1, 2):
        assert wrong(firsts, lasts, owners) == 4
        assert wrong(firsts, lasts - 1, owners) == 1
        assert wrong(firsts - 1, lasts, owners) == -1


@pytest.mark.parametrize("ids", [[], [7], [3, 3, 1], [2**62, -5, 2**62], list(range(300)) * 2])
def test_one_table_of_one_owner_is_routed_as_in_the_general_case(ids):
    given = np.array(ids, np.int64)
    bounds = np.array([[-(2**63)], [2**63 - 1]])
    nothing, starts = np.zeros(1, np.int64), np.array([0, given.size])
    buckets = np.zeros(4096, np.int32)
    long_way = route_ids(given, starts, bounds, buckets, 1, nothing, nothing, 1)

    wrong, distinct, inverse = route_one(given, -(2**63), 2**63 - 1)

    assert wrong == long_way[0] == -1
    np.testing.assert_array_equal(distinct, long_way[1])
    np.testing.assert_array_equal(inverse, long_way[2])
    # The caller may change its ids while the request is pending.
    assert not np.shares_memory(distinct, given)


@pytest.mark.parametrize(("ids", "place"), [([10], 0), ([-1], 0), ([9, 0, 10], 2), ([0, -1], 1)])
def test_the_first_id_outside_one_table_is_found(ids, place):
    assert route_one(np.array(ids, np.int64), 0, 9)[0] == place

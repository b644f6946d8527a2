"""Splitting requests into messages below the limit."""

from types import SimpleNamespace

import numpy as np
import pytest

from gradmesh.protos.errors import IdOutOfRange
from gradmesh.protos.sharding import ShardMap, even_buckets
from gradmesh.sdk.table.routing import route
from gradmesh.sdk.table.table_set import TableSet, WantedIds
from gradmesh.sdk.table.wire import LOSSLESS

SERVERS = object()


def make_set(*dims, rows=1000):
    return TableSet(
        [
            SimpleNamespace(
                wire=LOSSLESS,
                name=f"t{i}",
                dim=dim,
                dtype=np.dtype(np.float32),
                first_id=0,
                last_id=rows - 1,
                servers=SERVERS,
                metrics=None,
                timeout_s=1,
            )
            for i, dim in enumerate(dims)
        ]
    )


def make_map(count):
    names = [f"ps-{i}" for i in range(count)]
    return ShardMap(1, names, names, np.asarray(even_buckets(count), np.int32))


def wanted_of(*lists):
    flat = np.concatenate([np.asarray(ids, np.int64) for ids in lists])
    return WantedIds(flat, np.cumsum([0, *map(len, lists)]).astype(np.int64))


def gathered(tables, plan):
    """Rows as servers would send them: each contains its table and id."""
    matrices = [np.full((total, 2), -1) for total in plan.totals]
    for message in plan.messages:
        for piece in message.slices:
            place = matrices[piece.group][piece.span]
            assert (place == -1).all()
            place[:, 0], place[:, 1] = piece.table, piece.ids
    return matrices


@pytest.mark.parametrize("max_bytes", [1 << 20, 2000, 100])
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("dims", [(4,), (4, 4, 4), (4, 16, 4)])
def test_every_id_finds_its_row_however_messages_are_cut(dims, shards, max_bytes):
    tables = make_set(*dims)
    rng = np.random.default_rng(0)
    lists = [rng.integers(0, 500, 300) for _ in dims]

    plan = route(tables, wanted_of(*lists), make_map(shards), max_bytes)

    matrices = gathered(tables, plan)
    inverse = np.split(plan.inverse, len(dims))
    for table, ids in enumerate(lists):
        rows = matrices[tables.group_of[table]][inverse[table]]
        np.testing.assert_array_equal(rows[:, 0], table)
        np.testing.assert_array_equal(rows[:, 1], ids)
    size = max(
        sum(8 * p.ids.size + p.ids.size * tables.row_bytes[p.table] for p in part.slices)
        for part in plan.messages
    )
    assert size <= max(max_bytes, 8 + 64)
    for shard in plan.shards:
        numbers = [part.number for part in plan.messages if part.shard == shard]
        assert numbers == list(range(len(numbers)))
        assert plan.depth >= len(numbers)


def test_an_empty_request_sends_no_messages():
    plan = route(make_set(4, 8), wanted_of([], []), make_map(2))

    assert (plan.messages, plan.depth, plan.totals) == ([], 0, [0, 0])


@pytest.mark.parametrize("bad", [1000, -1])
@pytest.mark.parametrize("shards", [1, 3])
def test_a_bad_id_is_named_with_its_table(bad, shards):
    with pytest.raises(IdOutOfRange, match=rf"'t1': id {bad} is not among its rows 0 to 999"):
        route(make_set(4, 4), wanted_of([1, 2], [3, bad]), make_map(shards))

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmesh.protos.errors import IdOutOfRange, InvalidRequest
from gradmesh.protos.sharding import ShardMap, even_buckets
from gradmesh.sdk.table.routing import check_grads, check_ids, route


def shard_map(count):
    names = [f"ps-{i}" for i in range(count)]
    return ShardMap(1, names, names, np.array(even_buckets(count), np.int32))


columns = st.lists(
    st.lists(st.integers(0, 30), max_size=20).map(lambda ids: np.array(ids, np.int64)),
    min_size=1,
    max_size=3,
)


@settings(deadline=None, max_examples=60)
@given(columns, st.integers(1, 5))
def test_rows_come_back_to_the_ids_that_asked(ids, count):
    shards = shard_map(count)
    tables = [np.arange(31)[:, None] + 100.0 * (table + 1) for table in range(len(ids))]

    plan = route(ids, shards)
    replies = {
        shard: [tables[piece.table][piece.ids] for piece in pieces]
        for shard, pieces in plan.pieces.items()
    }
    rows = plan.merge(replies, np.empty((plan.total, 1)))

    for table, wanted in enumerate(ids):
        np.testing.assert_array_equal(rows[plan.inverse[table]], tables[table][wanted])
    assert plan.total == sum(np.unique(wanted).size for wanted in ids)
    for shard, pieces in plan.pieces.items():
        for piece in pieces:
            assert piece.ids.size == np.unique(piece.ids).size > 0
            assert (shards.shards_of(piece.ids) == shard).all()


@settings(deadline=None, max_examples=40)
@given(columns, st.integers(1, 5))
def test_what_is_split_merges_to_itself(ids, count):
    plan = route(ids, shard_map(count))
    rows = np.arange(plan.total, dtype=np.float32)[:, None]

    merged = plan.merge(plan.split(rows), np.full_like(rows, -1))

    np.testing.assert_array_equal(merged, rows)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.uint64])
def test_ids_of_every_integer_type_are_taken(dtype):
    ids = check_ids(np.array([[0, 9]], dtype), "t", 10)

    assert ids.dtype == np.int64
    assert ids.tolist() == [[0, 9]]


@pytest.mark.parametrize("bad", [[10], [-1], np.array([2**63 + 5], np.uint64)])
def test_the_id_out_of_range_is_named_as_it_was_given(bad):
    with pytest.raises(IdOutOfRange, match=f"table 't': id {bad[0]} "):
        check_ids(bad, "t", 10)


def test_no_ids_have_any_type():
    assert check_ids([], "t", 10).dtype == np.int64
    assert check_ids(np.empty((0, 2), np.float32), "t", 10).shape == (0, 2)


@pytest.mark.parametrize("bad", [[0.0], [True], ["a"], [2**70], [None]])
def test_what_is_no_integer_is_refused(bad):
    with pytest.raises(InvalidRequest, match="must be integers"):
        check_ids(bad, "t", 10)


def test_gradients_take_the_type_of_the_rows():
    given = np.ones((2, 3), np.float32)

    assert check_grads(given, (2, 3), np.dtype(np.float32), "t") is given
    assert check_grads([[1, 2]], (1, 2), np.dtype(np.float16), "t").dtype == np.float16

"""Hash tables: rows are created on first use and restored unchanged."""

import numpy as np
import pytest

from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.protos.errors import InvalidRequest, StaleShardMap, StoreFull
from gradmesh.sdk.table.spec import least_max_bytes
from gradmesh.services.parameter_server.table import Budget

EXTREMES = np.array([0, -1, 1, 2**63 - 1, -(2**63), 10**18], np.int64)


def one(shards):
    return shards.shards[0]


def test_any_int64_is_an_id_and_a_row_depends_on_the_id_alone(make_shards):
    first, second = make_shards(), make_shards(3)

    rows = first.read(EXTREMES)
    again = second.read(EXTREMES[::-1])[::-1]

    np.testing.assert_array_equal(rows, again)
    assert len({row.tobytes() for row in rows}) == EXTREMES.size
    assert one(first).row_count == EXTREMES.size


def test_hash_and_dense_tables_begin_with_the_same_rows(make_shards):
    ids = np.arange(1000)

    np.testing.assert_array_equal(make_shards().read(ids), make_shards(rows=1000).read(ids))


def test_growth_keeps_every_row(make_shards):
    shards = make_shards(dim=2)
    ids = np.random.default_rng(0).permutation(200_000) * 977 - 10**8
    for part in np.array_split(ids, 23):
        shards.push(part, np.stack([part, part], 1).astype(np.float32))

    changed = shards.read(ids)

    first = make_shards(dim=2).read(ids)
    np.testing.assert_array_equal(changed, first - np.stack([ids, ids], 1).astype(np.float32))
    assert one(shards).row_count == ids.size
    assert set(shards.rows()) == set(ids.tolist())


def test_peeking_makes_no_row(make_shards):
    shards = make_shards()
    made = shards.read([1, 2])

    seen = shards.read([1, 2, 3], peek=True)

    np.testing.assert_array_equal(seen[:2], made)
    np.testing.assert_array_equal(seen[2], make_shards().read([3])[0])
    assert one(shards).row_count == 2
    assert one(shards).stats.hit_rate == pytest.approx(2 / 5)


def test_a_reset_restores_initial_rows(make_shards):
    shards = make_shards()
    first = shards.read(np.arange(5000))
    shards.push(np.arange(5000), np.ones((5000, 4), np.float32))

    one(shards).reset()

    assert (one(shards).row_count, one(shards).steps) == (0, 0)
    np.testing.assert_array_equal(shards.read(np.arange(5000)), first)


def test_an_id_of_another_server_is_refused(make_shards):
    shards = make_shards(2)

    with pytest.raises(StaleShardMap, match="is on another server"):
        one(shards).slots_of(np.arange(100))


@pytest.mark.parametrize("ids", [np.zeros(2), np.zeros((1, 1), np.int64), np.zeros(1, np.int32)])
def test_ids_are_flat_int64(make_shards, ids):
    with pytest.raises(InvalidRequest, match="int64"):
        one(make_shards()).slots_of(ids)


def test_a_full_server_makes_no_row(make_shards):
    budget = Budget(1_000_000)
    shards = make_shards(dim=16, home={"budget": budget})
    shards.read(np.arange(1000))
    held = budget.taken

    with pytest.raises(StoreFull, match="max_store_bytes"):
        shards.read(np.arange(20_000))

    assert (one(shards).row_count, budget.taken) == (1000, held)
    assert abs(budget.taken - one(shards).bytes) < 4096


def test_a_table_at_its_limit_without_eviction_is_full(make_shards):
    shards = make_shards(max_bytes=least_max_bytes(16))
    shards.read(np.arange(4000))

    with pytest.raises(StoreFull, match="give it an eviction"):
        shards.read(np.arange(4000, 4200))

    assert one(shards).row_count == 4000


@pytest.mark.parametrize(
    ("rule", "settings", "expected"),
    [
        ("", {}, None),
        ("reject", {}, None),
        ("clip", {"limit": 2.0}, [0, 2, -2, 1]),
        ("allow", {}, [np.nan, np.inf, -np.inf, 1]),
    ],
)
def test_bad_gradients_follow_the_policy_of_the_table(make_shards, rule, settings, expected):
    recipe = table_pb2.Recipe(name=rule, settings=settings)
    shards = make_shards(bad_gradients=recipe)
    first = shards.read([5])
    grads = np.array([[np.nan, np.inf, -np.inf, 1]], np.float32)

    if expected is None:
        with pytest.raises(InvalidRequest, match="NaN or infinite"):
            shards.push([5], grads)
        np.testing.assert_array_equal(shards.read([5]), first)
    else:
        shards.push([5], grads)
        np.testing.assert_array_equal(shards.read([5]), first - np.array([expected], np.float32))

import numpy as np
import pytest

from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.protos.errors import IdOutOfRange, InvalidRequest, StaleShardMap
from gradmesh.services.parameter_server.table import TableShard
from tests.own_process import peak_bytes
from tests.unit.services.parameter_server.conftest import Make

NORMAL = table_pb2.Recipe(name="normal", settings={"mean": 0.0, "std": 1.0})
ADAGRAD = table_pb2.Recipe(name="adagrad", settings={"lr": 1.0})


def gather(make, spec, count):
    """Return all rows of a table that is spread over some shards, by id."""
    shards = make.shards(count)
    rows = np.empty((spec.rows, spec.dim), TableShard(spec, shards, 0).read(np.array([0])).dtype)
    owners = shards.shards_of(np.arange(spec.rows))
    for shard in range(count):
        table = TableShard(spec, shards, shard)
        ids = np.nonzero(owners == shard)[0]
        rows[ids] = table.read(table.slots_of(ids))
    return rows


@pytest.mark.parametrize("rows", [50, 5000])
def test_repeated_rows_are_found_in_small_and_large_tables(make, rows):
    table = TableShard(make.spec(rows=rows), make.shards(), 0)

    for ids, repeats in (([], False), ([0, 1, 49], False), ([49, 1, 49], True)):
        assert table.has_repeats(table.slots_of(np.array(ids, np.int64))) is repeats


@pytest.mark.parametrize("dtype", ["FLOAT16", "FLOAT32", "FLOAT64"])
@pytest.mark.parametrize("count", [2, 3, 5])
def test_initial_rows_do_not_depend_on_the_number_of_shards(make, dtype, count):
    spec = make.spec(rows=500, initializer=NORMAL, dtype=f"ELEMENT_TYPE_{dtype}", seed=3)

    np.testing.assert_array_equal(gather(make, spec, count), gather(make, spec, 1))


def test_rows_of_half_precision_are_rounded_from_single(make):
    half = make.spec(initializer=NORMAL, dtype="ELEMENT_TYPE_FLOAT16")
    single = make.spec(initializer=NORMAL)

    np.testing.assert_array_equal(gather(make, half, 1), gather(make, single, 1).astype(np.float16))


def test_every_id_is_on_one_shard(make):
    tables = [TableShard(make.spec(rows=200), make.shards(3), shard) for shard in range(3)]

    assert sum(table.row_count for table in tables) == 200
    owners = make.shards(3).shards_of(np.arange(200))
    for shard, table in enumerate(tables):
        mine = np.nonzero(owners == shard)[0]
        assert table.slots_of(mine).tolist() == list(range(mine.size))
        other = np.nonzero(owners != shard)[0][:1]
        with pytest.raises(StaleShardMap, match=f"id {other[0]} is on another server"):
            table.slots_of(other)


@pytest.mark.parametrize(
    ("ids", "error"),
    [
        (np.array([50]), IdOutOfRange),
        (np.array([-1]), IdOutOfRange),
        (np.array([0], np.int32), InvalidRequest),
        (np.array([[0]]), InvalidRequest),
        (np.array(0), InvalidRequest),
    ],
)
def test_wrong_ids_have_no_slot(make, ids, error):
    with pytest.raises(error, match="table 'user'"):
        TableShard(make.spec(), make.shards(), 0).slots_of(ids)


def test_no_ids_have_no_rows(make):
    table = TableShard(make.spec(), make.shards(), 0)
    none = table.slots_of(np.empty(0, np.int64))

    table.check_grads(none, np.empty((0, 3), np.float32))
    table.apply(none, np.empty((0, 3), np.float32))

    assert table.read(none).shape == (0, 3)


@pytest.mark.parametrize(
    "grads",
    [
        np.ones((1, 3), np.float32),
        np.ones((2, 4), np.float32),
        np.ones((2, 3), np.float64),
        np.ones(6, np.float32),
        np.array([[0, 0, np.nan]] * 2, np.float32),
        np.array([[0, 0, -np.inf]] * 2, np.float32),
    ],
)
def test_gradients_of_wrong_shape_are_refused(make, grads):
    with pytest.raises(InvalidRequest, match="table 'user'"):
        TableShard(make.spec(), make.shards(), 0).check_grads(np.array([1, 2]), grads)


@pytest.mark.parametrize("dtype", ["FLOAT16", "FLOAT32", "FLOAT64"])
def test_gradients_change_their_rows_only(make, dtype):
    table = TableShard(make.spec(dtype=f"ELEMENT_TYPE_{dtype}"), make.shards(), 0)
    every = np.arange(50)
    kind = table.read(every).dtype

    table.apply(np.array([4, 2]), np.array([[1, 2, 3], [4, 5, 6]], kind))

    rows = table.read(every)
    assert rows[4].tolist() == [0, -1, -2]
    assert rows[2].tolist() == [-3, -4, -5]
    assert (np.delete(rows, [2, 4], axis=0) == 1).all()
    assert table.steps == 1


def test_reading_gives_a_copy(make):
    table = TableShard(make.spec(), make.shards(), 0)

    table.read(np.array([1]))[:] = 7

    assert (table.read(np.array([1])) == 1).all()


def test_a_reset_restores_rows_state_and_steps(make):
    table = TableShard(make.spec(initializer=NORMAL, optimizer=ADAGRAD), make.shards(), 0)
    slots, grads = np.array([1, 2]), np.ones((2, 3), np.float32)
    initial = table.read(np.arange(50))
    table.apply(slots, grads)
    once = table.read(np.arange(50))
    table.apply(slots, grads)

    table.reset()
    again = table.read(np.arange(50))
    table.apply(slots, grads)

    np.testing.assert_array_equal(again, initial)
    np.testing.assert_array_equal(table.read(np.arange(50)), once)
    assert table.steps == 1


def test_the_step_of_a_run_counts_where_no_row_was_touched(make):
    table = TableShard(make.spec(), make.shards(), 0)

    table.apply(np.array([1]), np.ones((1, 3), np.float32), step=5)

    assert table.steps == 5


@pytest.mark.parametrize("dtype", ["FLOAT16", "FLOAT32"])
def test_making_a_table_takes_little_more_than_it_holds(in_own_process, dtype):
    peak, held = in_own_process(cost_of_making, f"ELEMENT_TYPE_{dtype}")

    assert peak < 1.5 * held


def cost_of_making(dtype):
    """Return the peak of memory while a table is created, and the size of the table."""
    spec = Make.spec(rows=1_000_000, dim=4, dtype=dtype, initializer=NORMAL)
    TableShard(spec, Make.shards(4), 0)  # loads kernels
    made = []
    peak = peak_bytes(lambda: made.append(TableShard(spec, Make.shards(4), 0)))
    return peak, made[0].bytes

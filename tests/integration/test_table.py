"""Tables of a mesh: reading rows, pushing gradients, and input that is refused."""

import numpy as np
import pytest

from gradmesh.engine import optim
from gradmesh.protos.errors import (
    IdOutOfRange,
    InvalidFrame,
    InvalidRequest,
    TableConflict,
    TableNotFound,
)
from gradmesh.sdk.table.recipe import Initializer


def test_rows_do_not_depend_on_their_position(cluster):
    mesh = cluster.connect()
    table = mesh.table("user", rows=100, dim=4, optimizer=optim.SGD(lr=0.5))

    rows = table.lookup([[7, 8], [8, 7]])

    assert rows.shape == (2, 2, 4)
    np.testing.assert_array_equal(rows[0], rows[1, ::-1])
    np.testing.assert_array_equal(table.lookup(7), rows[0, 0])


def test_a_push_adds_repeated_ids_up(cluster):
    mesh = cluster.connect()
    table = mesh.table("user", rows=100, dim=4, optimizer=optim.SGD(lr=0.5))
    before = table.lookup(np.arange(100))

    table.push([3, 9, 3], np.ones((3, 4), np.float32))

    change = before - table.lookup(np.arange(100))
    np.testing.assert_allclose(change[[3, 9]], [[1.0] * 4, [0.5] * 4], atol=1e-6)
    assert not np.delete(change, [3, 9], axis=0).any()


@pytest.mark.parametrize("ids", [[], np.empty((0,), np.int64), np.empty((0, 3), np.uint8)])
def test_no_ids_give_no_rows(cluster, ids):
    mesh = cluster.connect()
    table = mesh.table("user", rows=10, dim=4, optimizer=optim.SGD(lr=0.5))

    rows = table.lookup(ids)
    table.push(ids, np.empty((*np.shape(ids), 4), np.float32))

    assert rows.shape == (*np.shape(ids), 4)


def test_many_ids_in_one_batch(cluster):
    mesh = cluster.connect()
    table = mesh.table(
        "user", rows=50_000, dim=4, optimizer=optim.SGD(lr=1.0), initializer=Initializer.constant(0)
    )
    ids = np.arange(200_000) % 50_000

    table.push(ids, np.ones((ids.size, 4), np.float32))

    assert (table.lookup(ids) == -4).all()


def test_a_batch_beyond_the_frame_is_refused_with_the_remedy(make_cluster):
    cluster = make_cluster(max_frame_bytes=1 << 16)
    mesh = cluster.connect()
    table = mesh.table("user", rows=50_000, dim=64, optimizer=optim.SGD(lr=1.0))

    with pytest.raises(InvalidFrame, match="max_frame_bytes"):
        table.lookup(np.arange(50_000))

    assert table.lookup([1]).shape == (1, 64)


def test_tables_of_other_names_have_other_rows(cluster):
    mesh = cluster.connect()
    first = mesh.table("a", rows=10, dim=4, optimizer=optim.SGD(lr=0.5), seed=1)
    second = mesh.table("b", rows=10, dim=4, optimizer=optim.SGD(lr=0.5), seed=1)

    assert not (first.lookup(np.arange(10)) == second.lookup(np.arange(10))).any()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("optimizer", [optim.SGD(lr=0.5), optim.RowwiseAdagrad(lr=0.5)])
def test_every_type_of_rows_learns(cluster, dtype, optimizer):
    mesh = cluster.connect()
    table = mesh.table("user", rows=10, dim=4, optimizer=optimizer, dtype=dtype)
    before = table.lookup(np.arange(10))

    table.push([1, 2], np.ones((2, 4)))

    after = table.lookup(np.arange(10))
    assert after.dtype == dtype
    assert (after[[1, 2]] < before[[1, 2]]).all()
    np.testing.assert_array_equal(after[3:], before[3:])


def test_an_equal_table_is_opened_and_another_refused(cluster):
    mesh = cluster.connect()
    made = mesh.table("user", rows=10, dim=4, optimizer=optim.SGD(lr=0.5))

    again = mesh.table("user", rows=10, dim=4, optimizer=optim.SGD(lr=0.5))
    opened = mesh.open_table("user")
    with pytest.raises(TableConflict, match=r"'user' exists with rows 10, not 11"):
        mesh.table("user", rows=11, dim=4, optimizer=optim.SGD(lr=0.5))

    assert made.spec == again.spec == opened.spec == mesh.open_table("user").spec


def test_an_unknown_table_is_named(cluster):
    mesh = cluster.connect()

    with pytest.raises(TableNotFound, match=r"'nobody'.*create it first"):
        mesh.open_table("nobody")


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"rows": 0}, "rows"),
        ({"rows": 1.5}, "rows"),
        ({"rows": 2**41}, "rows"),
        ({"dim": 0}, "dim"),
        ({"dim": -1}, "dim"),
        ({"dim": 2**20}, "dim"),
        ({"seed": -1}, "seed"),
        ({"name": "no such name!"}, "name"),
        ({"name": ""}, "name"),
        ({"dtype": np.int32}, "dtype"),
        ({"dtype": np.complex64}, "dtype"),
        ({"optimizer": optim.SGD(lr=0.1, momentum=float("inf"))}, "finite"),
    ],
)
def test_an_invalid_specification_is_refused(cluster, wrong, what):
    mesh = cluster.connect()
    spec = {"name": "t", "rows": 10, "dim": 4, "optimizer": optim.SGD(lr=0.5)} | wrong

    with pytest.raises(InvalidRequest, match=what):
        mesh.table(spec.pop("name"), **spec)

    assert mesh.connection.coordinator.list_tables(mesh.connection.deadline()) == []


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        ([0, 10], IdOutOfRange, "id 10 is not among its rows 0 to 9"),
        ([-1], IdOutOfRange, "id -1"),
        (np.array([2**64 - 1], np.uint64), IdOutOfRange, str(2**64 - 1)),
        ([1.0], InvalidRequest, "integers"),
        ([True], InvalidRequest, "integers"),
        (["1"], InvalidRequest, "integers"),
    ],
)
def test_wrong_ids_are_refused_before_they_travel(cluster, ids, error, message):
    mesh = cluster.connect()
    table = mesh.table("user", rows=10, dim=4, optimizer=optim.SGD(lr=0.5))
    before = table.lookup(np.arange(10))

    with pytest.raises(error, match=message):
        table.lookup(ids)
    with pytest.raises(error, match=message):
        table.push(ids, np.ones((len(ids), 4), np.float32))

    np.testing.assert_array_equal(table.lookup(np.arange(10)), before)


@pytest.mark.parametrize(
    ("grads", "message"),
    [
        (np.ones((2, 3), np.float32), "shape"),
        (np.ones((8,), np.float32), "shape"),
        (np.array([[1, 1, 1, 1], [1, np.nan, 1, 1]], np.float32), "NaN"),
        (np.array([[1, 1, 1, 1], [1, np.inf, 1, 1]], np.float32), "infinite"),
        (np.full((2, 4), 1e300), "infinite"),
        (np.ones((2, 4), np.complex64), "complex64"),
        ([["a"] * 4] * 2, "gradients must be float32"),
    ],
)
def test_wrong_gradients_change_no_server(cluster, grads, message):
    mesh = cluster.connect()
    table = mesh.table("user", rows=10, dim=4, optimizer=optim.SGD(lr=0.5))
    before = table.lookup(np.arange(10))

    with pytest.raises(InvalidRequest, match=message):
        table.push([0, 9], grads)

    np.testing.assert_array_equal(table.lookup(np.arange(10)), before)
    assert [store.table("user", mesh.connection.deadline()).steps for store in cluster.stores] == [
        0,
        0,
    ]


def test_rows_do_not_depend_on_the_number_of_servers(make_cluster):
    found = []
    for count in (1, 2, 3, 5):
        cluster = make_cluster(parameter_servers=count)
        table = cluster.connect().table(
            "user", rows=999, dim=5, optimizer=optim.Adagrad(lr=0.1), seed=7
        )
        table.push(np.arange(0, 999, 3), np.ones((333, 5), np.float32))
        found.append(table.lookup(np.arange(999)))

    for rows in found[1:]:
        np.testing.assert_array_equal(rows, found[0])

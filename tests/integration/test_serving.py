"""Reading rows for serving: restarts, caches, pandas, no writes."""

import threading

import numpy as np
import pytest

from gradmesh.engine import optim
from gradmesh.protos.errors import (
    DeadlineExceeded,
    IdOutOfRange,
    InvalidRequest,
    TableNotFound,
    Unreachable,
)
from gradmesh.sdk.serving import ReadOnly, TableReader
from gradmesh.sdk.table.recipe import Initializer
from gradmesh.sdk.transport.policy import Timeouts

NOWHERE = "127.0.0.1:1"


@pytest.fixture
def tables(cluster):
    mesh = cluster.connect()
    return {
        name: mesh.table(
            name,
            rows=100,
            dim=dim,
            optimizer=optim.SGD(lr=1.0),
            initializer=Initializer.normal(1.0),
        )
        for name, dim in (("user", 4), ("item", 6))
    }


def test_a_reader_reads_what_a_mesh_reads(cluster, tables):
    ids = np.array([[3, 4], [4, 99]])

    with TableReader(cluster.address) as reader:
        rows = reader.lookup("user", ids)
        many = reader.lookup_many({"user": [1, 1], "item": 5})

    np.testing.assert_array_equal(rows, tables["user"].lookup(ids))
    np.testing.assert_array_equal(many["user"], tables["user"].lookup([1, 1]))
    np.testing.assert_array_equal(many["item"], tables["item"].lookup(5))


def test_a_reader_is_not_a_member_and_writes_nothing(cluster, tables):
    before = tables["user"].lookup(np.arange(100))

    with TableReader(cluster.address) as reader:
        assert reader.tables() == {"user": 4, "item": 6}
        with pytest.raises(ReadOnly, match=r"cannot push.*gm\.connect"):
            reader.push("user", [1], np.ones((1, 4)))
        (table,) = reader._set(["user"], tables["user"]._deadline(5)).tables
        with pytest.raises(ReadOnly):
            table.push([1], np.ones((1, 4), np.float32))

    np.testing.assert_array_equal(tables["user"].lookup(np.arange(100)), before)


def test_bad_input_gets_typed_errors(cluster, tables):
    with TableReader(cluster.address, cache_rows=10) as reader:
        with pytest.raises(TableNotFound):
            reader.lookup("nobody", [1])
        with pytest.raises(IdOutOfRange, match="'item': id 100"):
            reader.lookup_many({"user": [1], "item": [100]})
        with pytest.raises(InvalidRequest, match="mapping or a DataFrame"):
            reader.lookup_many([1, 2])
        assert reader.lookup_many({}) == {}
        assert reader.lookup("user", []).shape == (0, 4)
    for bad in ({"coordinator": []}, {"cache_rows": -1}, {"max_age_s": 0}):
        with pytest.raises(InvalidRequest):
            TableReader(**{"coordinator": cluster.address, **bad})


def test_rows_are_kept_for_a_while(cluster, tables):
    with TableReader(cluster.address, cache_rows=50, max_age_s=600) as reader:
        before = reader.lookup("user", [1, 2, 1])
        tables["user"].push([1], np.ones((1, 4), np.float32))
        kept = reader.lookup("user", [2, 1, 3])

        np.testing.assert_array_equal(kept[:2], before[[1, 0]])
        np.testing.assert_array_equal(kept[2], tables["user"].lookup(3))
        assert reader._metrics.tables.value("cache_hits") == 2
        assert reader._metrics.tables.value("lookup_rows") == 3


def test_an_old_row_is_asked_for_again(cluster, tables, eventually):
    with TableReader(cluster.address, cache_rows=50, max_age_s=0.01) as reader:
        before = reader.lookup("user", 1)
        tables["user"].push([1], np.ones((1, 4), np.float32))

        eventually(lambda: (reader.lookup("user", 1) == before - 1).all())


def test_a_reader_outlives_the_coordinator_and_follows_servers(cluster, tables):
    with TableReader(cluster.address, timeouts=Timeouts(call_s=20)) as reader:
        ids = np.arange(100)
        before = reader.lookup("user", ids)
        cluster.stop_coordinator()
        np.testing.assert_array_equal(reader.lookup("user", ids), before)
        cluster.start_coordinator()
        # The restarted coordinator has no state, so tables are created again.
        for table in tables.values():
            cluster.connect().connection.coordinator.create_table(table.spec, table._deadline(10))
        cluster.restart_server(0)

        np.testing.assert_array_equal(reader.lookup("user", ids), before)


def test_one_reachable_address_of_several_suffices(cluster, tables):
    with TableReader([NOWHERE, cluster.address], timeouts=Timeouts(call_s=20)) as reader:
        rows = reader.lookup("user", [1])

        assert cluster.address in repr(reader)
    np.testing.assert_array_equal(rows, tables["user"].lookup([1]))


@pytest.mark.parametrize("addresses", [NOWHERE, [NOWHERE, "127.0.0.1:2"]])
def test_an_unreachable_coordinator_ends_the_read_by_its_deadline(addresses):
    with (
        TableReader(addresses, timeouts=Timeouts(call_s=0.5)) as reader,
        pytest.raises((Unreachable, DeadlineExceeded)),
    ):
        reader.lookup("user", [1])


def test_threads_share_a_reader(cluster, tables):
    everything = tables["user"].lookup(np.arange(100))
    with TableReader(cluster.address, cache_rows=20, max_age_s=600) as reader:
        wrong = []

        def read(seed):
            rng = np.random.default_rng(seed)
            for _ in range(20):
                ids = rng.integers(0, 100, 15)
                if (reader.lookup("user", ids) != everything[ids]).any():
                    wrong.append(ids)

        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)

    assert wrong == []


@pytest.mark.parametrize("dtype", ["int64", "uint8", "Int64"])
def test_pandas_in_gives_pandas_out(cluster, tables, dtype):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"user": [7, 8], "item": [1, 2]}, index=["a", "b"], dtype=dtype)

    with TableReader(cluster.address) as reader:
        users = reader.lookup("user", frame["user"])
        both = reader.lookup_many(frame)

    assert list(users.index) == ["a", "b"]
    assert list(users.columns) == [f"user.{i}" for i in range(4)]
    np.testing.assert_array_equal(users.to_numpy(), tables["user"].lookup(frame["user"]))
    assert list(both.columns[4:]) == [f"item.{i}" for i in range(6)]
    np.testing.assert_array_equal(both.iloc[:, 4:].to_numpy(), tables["item"].lookup([1, 2]))


def test_missing_ids_of_pandas_are_refused(cluster, tables):
    pandas = pytest.importorskip("pandas")

    with TableReader(cluster.address) as reader, pytest.raises(InvalidRequest, match="integers"):
        reader.lookup("user", pandas.Series([1, None], dtype="Int64"))

"""Tables of every kind over real servers, from the handle a user holds."""

import ml_dtypes
import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from gradmesh.engine import optim
from gradmesh.engine.optim import lr_scheduler
from gradmesh.protos.errors import IdOutOfRange, InvalidRequest, StoreFull, TableConflict
from gradmesh.protos.frame import Frame
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2 as pb
from gradmesh.sdk.table.gradients import BadGradients
from gradmesh.sdk.table.lifetime import Admission, Eviction
from gradmesh.sdk.table.spec import least_max_bytes
from gradmesh.services.parameter_server.metrics import TableCollector

DIM = 4
OPTIMIZERS = {
    "sgd": optim.SGD(lr=0.1),
    "momentum": optim.SGD(lr=0.1, momentum=0.9, dampening=0.5),
    "adagrad": optim.Adagrad(lr=0.1),
    "rowwise": optim.RowwiseAdagrad(lr=0.1),
    "adam": optim.Adam(lr=0.01, betas=(0.8, 0.99)),
    "ftrl": optim.FTRL(lr=0.1),
}


def train(mesh):
    """Push to a dense and a hash table of each optimizer; return rows and state."""
    found = {}
    for name, optimizer in OPTIMIZERS.items():
        for rows in (200, None):
            table = mesh.table(
                f"{name}-{rows}",
                rows=rows,
                dim=DIM,
                optimizer=optimizer,
                schedule=lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3),
                dtype="bfloat16" if name == "rowwise" else np.float32,
            )
            rng = np.random.default_rng(5)
            for size in (1, 3, 40, 2, 80):
                ids = rng.integers(0, 200, size)
                table.push(ids, rng.standard_normal((size, DIM), np.float32))
            found[table.name] = table.lookup(np.arange(200)).astype(np.float32)
    return found


def test_any_number_of_servers_gives_the_same_bits(make_cluster):
    alone = train(make_cluster(parameter_servers=1).connect())

    for count in (2, 3, 5):
        found = train(make_cluster(parameter_servers=count).connect())

        for name, rows in alone.items():
            np.testing.assert_array_equal(found[name], rows, err_msg=f"{name} on {count}")
    for name in OPTIMIZERS:
        np.testing.assert_array_equal(alone[f"{name}-200"].shape, alone[f"{name}-None"].shape)


def test_a_hash_table_takes_any_int64(make_cluster):
    table = make_cluster().connect().table("user", dim=DIM, optimizer=optim.SGD(lr=1.0))
    ids = np.array([[-(2**63), 2**63 - 1], [0, 0]])
    first = table.lookup(ids)

    table.push(ids, np.ones((2, 2, DIM), np.float32))

    changed = table.lookup(ids)
    np.testing.assert_array_equal(changed, first - np.array([[[1], [1]], [[2], [2]]], np.float32))
    with pytest.raises(IdOutOfRange, match="int64"):
        table.lookup(np.array([2**63], np.uint64))
    with pytest.raises(InvalidRequest, match="integers"):
        table.lookup([0.5])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rows": 10, "eviction": Eviction.lru(), "max_bytes": 1 << 30}, "is dense"),
        ({"rows": 10, "admission": Admission.frequency(2)}, "is dense"),
        ({"eviction": Eviction.lru()}, "needs max_bytes"),
        ({"eviction": Eviction.lfu(), "max_bytes": 1000}, "at least"),
        ({"max_bytes": -1}, "max_bytes"),
        ({"hot_bytes": 0.5}, "hot_bytes"),
        ({"rows": 0}, "rows"),
        ({"dtype": np.int32}, "dtype"),
    ],
)
def test_an_invalid_specification_is_refused(make_cluster, fields, words):
    mesh = make_cluster(parameter_servers=1).connect()

    with pytest.raises(InvalidRequest, match=words):
        mesh.table("user", dim=DIM, optimizer=optim.SGD(lr=0.1), **fields)


def test_another_kind_is_a_conflict(make_cluster):
    mesh = make_cluster(parameter_servers=1).connect()
    mesh.table("user", dim=DIM, optimizer=optim.SGD(lr=0.1), admission=Admission.probability(0.5))

    with pytest.raises(TableConflict, match=r"kind 2, not 0.*admission probability\(share=0.5\)"):
        mesh.table("user", rows=5, dim=DIM, optimizer=optim.SGD(lr=0.1))


def test_bad_gradients_are_clipped_where_a_table_says_so(make_cluster):
    mesh = make_cluster().connect()
    table = mesh.table(
        "user", dim=2, optimizer=optim.SGD(lr=1.0), bad_gradients=BadGradients.clip(0.5)
    )
    first = table.lookup([7])

    table.push([7], np.array([[np.nan, -np.inf]], np.float32))

    np.testing.assert_array_equal(table.lookup([7]), first - np.array([[0, -0.5]], np.float32))


def state_of(cluster, *names):
    """The state that pushes change: rows with their optimizer state, row and step counts."""
    found = {}
    for store in cluster.stores:
        for table in store.tables():
            if table.name in names:
                rows = [
                    (ids.tolist(), rows.tobytes(), {n: a.tobytes() for n, a in state.items()})
                    for ids, rows, state in table.blocks()
                ]
                found[store.registry, table.name] = (
                    rows,
                    table.row_count,
                    table.steps,
                    table.bytes,
                )
    return found


def test_full_memory_is_reported_and_nothing_is_applied(make_cluster):
    cluster = make_cluster(parameter_servers=1, max_store_bytes=1 << 20)
    table = cluster.connect().table("user", dim=64, optimizer=optim.Adagrad(lr=1.0))
    table.push([1, 2], np.ones((2, 64), np.float32))
    before = state_of(cluster, "user")

    with pytest.raises(StoreFull, match="max_store_bytes"):
        table.push(np.arange(10_000), np.ones((10_000, 64), np.float32))
    with pytest.raises(StoreFull, match="max_store_bytes"):
        table.lookup(np.arange(10_000))

    assert state_of(cluster, "user") == before
    table.push([1, 2], np.ones((2, 64), np.float32))
    assert state_of(cluster, "user") != before


@pytest.mark.parametrize("limit", [{}, {"max_bytes": 3 << 20}], ids=["server", "table"])
@pytest.mark.parametrize("order", [("small", "big"), ("big", "small")])
def test_full_memory_for_one_table_leaves_the_other_alone(make_cluster, raw, order, limit):
    cluster = make_cluster(parameter_servers=1, max_store_bytes=1 << 30 if limit else 2 << 20)
    mesh = cluster.connect()
    for name, dim in {"small": 2, "big": 64}.items():
        table = mesh.table(name, dim=dim, optimizer=optim.Adagrad(lr=1.0), **limit)
        table.push([1], np.ones((1, dim)))
    before = state_of(cluster, *order)
    arrays = {
        "small": [np.arange(5), np.ones((5, 2), np.float32)],
        "big": [np.arange(10_000), np.ones((10_000, 64), np.float32)],
    }
    push = pb.PushRequest(worker="raw", incarnation=1, sequence=1, tables=order)
    push.shard_epoch = mesh.connection.servers.shard_map(mesh.connection.deadline()).epoch

    where = cluster.servers[0].server.address
    look = pb.LookupRequest(shard_epoch=push.shard_epoch, tables=order)

    with pytest.raises(StoreFull, match="'big'"):
        raw(where, "Push", Frame(push, [array for name in order for array in arrays[name]]))
    with pytest.raises(StoreFull, match="'big'"):
        raw(where, "Lookup", Frame(look, [arrays[name][0] for name in order]))

    assert state_of(cluster, *order) == before


def test_a_table_reports_and_shows_its_figures(make_cluster, raw):
    cluster = make_cluster(parameter_servers=1)
    table = cluster.connect().table(
        "user",
        dim=DIM,
        dtype=ml_dtypes.bfloat16,
        optimizer=optim.RowwiseAdagrad(),
        eviction=Eviction.lru(),
        max_bytes=least_max_bytes(12),
    )
    table.lookup(np.arange(10_000))
    table.lookup(np.repeat(np.arange(10), 7))
    registry = CollectorRegistry()
    TableCollector(cluster.stores[0], registry)

    held = raw(
        cluster.servers[0].server.address, "InspectTable", pb.InspectTableRequest(table="user")
    )
    page = generate_latest(registry).decode()

    assert held.rows <= 4096
    assert held.expected_row_bytes == DIM * 2 + 4 + 20
    assert held.actual_row_bytes == pytest.approx(held.bytes / held.rows)
    assert held.evicted + held.rows == held.admitted
    assert (held.lookups, held.ids) == (2, 10_010)
    assert f'gradmesh_table_rows{{table="user"}} {float(held.rows)}' in page
    assert f'gradmesh_table_evictions_total{{table="user"}} {float(held.evicted)}' in page
    assert f'gradmesh_table_unique_ratio{{table="user"}} {10_010 / 10_070}' in page
    assert "gradmesh_run_lag_steps 0.0" in page

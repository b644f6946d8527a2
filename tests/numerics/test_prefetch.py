"""A run with rows prefetched before their step equals one without, to the last bit."""

import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gradmesh.engine import optim
from gradmesh.protos.errors import InvalidFrame
from gradmesh.sdk import autograd
from gradmesh.sdk.nn import RemoteEmbedding, RemoteEmbeddingBag
from gradmesh.sdk.table import prefetch
from gradmesh.sdk.table.lifetime import Admission, Eviction
from gradmesh.sdk.table.metrics import TableMetrics
from gradmesh.sdk.table.recipe import Initializer
from gradmesh.trainer.data import DataConfig
from gradmesh.trainer.job.config import JobConfig
from gradmesh.trainer.job.run import TrainingRun
from gradmesh.trainer.job.spec import JobSpec
from gradmesh.trainer.models import ModelConfig
from gradmesh.trainer.process_group import Endpoint

STEPS = 8
BATCH = 6
# A small table whose rows every step changes, and one most of whose rows stay as they are.
ROWS = {"hot": 4, "cold": 500}
DIMS = {"hot": 3, "cold": 5}


def make_tables(mesh, names=tuple(ROWS)):
    return [
        mesh.table(
            name,
            rows=ROWS[name],
            dim=DIMS[name],
            optimizer=optim.SGD(lr=0.1, momentum=0.9, dampening=0.5),
            initializer=Initializer.uniform(1.0),
            seed=5,
        )
        for name in names
    ]


def batch(step, rank):
    rng = np.random.default_rng([step, rank])
    return [rng.integers(0, rows, (BATCH, 2)) for rows in ROWS.values()]


def train(cluster, name, barrier, depth, max_frame_bytes=1 << 20):
    metrics = TableMetrics()
    mesh = cluster.connect(
        name, role="trainer", table_metrics=metrics, max_frame_bytes=max_frame_bytes
    )
    tables = make_tables(mesh)
    layer = RemoteEmbeddingBag(tables, mode="sum", prefetch_depth=depth)
    place = mesh.connection.join_trainers(10)
    if place.rank == 0:
        mesh.connection.start_run(place, [table.name for table in tables])
    barrier.wait()
    losses, asked = [], set()
    for step in range(STEPS):
        with autograd.step_context(mesh, place.mark(step)) as ctx:
            pooled = layer(batch(step, place.rank))
            for later in range(step + 1, min(step + 1 + depth, STEPS)):
                if later not in asked:
                    asked.add(later)
                    assert layer.prefetch(batch(later, place.rank))
            loss = (pooled * pooled * float(1 + place.rank)).sum()
            autograd.backward(ctx, [loss])
            autograd.apply(ctx)
        losses.append(loss.item())
    barrier.wait()
    rows = {table.name: table.lookup(np.arange(ROWS[table.name])) for table in tables}
    mesh.close()
    return place.rank, losses, rows, metrics


def run(make_cluster, trainers, servers, depth, **options):
    cluster = make_cluster(parameter_servers=servers, trainers=trainers)
    barrier = threading.Barrier(trainers, timeout=120)
    with ThreadPoolExecutor(trainers) as pool:
        jobs = [
            pool.submit(train, cluster, f"trainer-{i}", barrier, depth, **options)
            for i in range(trainers)
        ]
        found = sorted((job.result(timeout=120) for job in jobs), key=lambda result: result[0])
    left = [store.contexts.open_count() for store in cluster.stores]
    assert left == [0] * servers
    return found


@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("trainers", [1, 2])
def test_prefetching_changes_no_bit(make_cluster, trainers, servers):
    plain = run(make_cluster, trainers, servers, depth=0)
    ahead = run(make_cluster, trainers, servers, depth=1)

    for (_, losses, rows, _), (_, ahead_losses, ahead_rows, metrics) in zip(
        plain, ahead, strict=True
    ):
        assert ahead_losses == losses
        for name in ROWS:
            np.testing.assert_array_equal(ahead_rows[name], rows[name])
        assert metrics.value("prefetch_hits") == STEPS - 1
        assert metrics.value("prefetch_misses") == 0
        assert 0 < metrics.value("refreshed_rows") < metrics.value("prefetched_rows")


@pytest.mark.parametrize("depth", [2, 3])
def test_depth_and_cut_messages_change_no_bit(make_cluster, depth):
    plain = run(make_cluster, 2, 2, depth=0)
    ahead = run(make_cluster, 2, 2, depth=depth, max_frame_bytes=1500)

    for (_, losses, rows, _), (_, ahead_losses, ahead_rows, metrics) in zip(
        plain, ahead, strict=True
    ):
        assert ahead_losses == losses
        for name in ROWS:
            np.testing.assert_array_equal(ahead_rows[name], rows[name])
        assert metrics.value("prefetch_hits") == STEPS - 1


def test_rows_that_others_push_are_refreshed(cluster):
    mesh, other = cluster.connect(), cluster.connect()
    (table,), (same,) = make_tables(mesh, ["cold"]), make_tables(other, ["cold"])
    layer = RemoteEmbedding(table)
    ids = np.arange(0, 500, 7)

    with autograd.context(mesh):
        assert layer.prefetch(ids)
        layer._source._prefetched[0]._fetched.result()
        same.push(ids[:3], np.ones((3, 5), np.float32))
        rows = layer(ids)

    np.testing.assert_array_equal(rows.data, table.lookup(ids))
    metrics = mesh.table_metrics
    assert (metrics.value("prefetched_rows"), metrics.value("refreshed_rows")) == (ids.size, 3)


@pytest.mark.parametrize("make_layer", [RemoteEmbedding, RemoteEmbeddingBag])
def test_rows_that_others_push_when_the_step_before_is_over_are_refreshed(cluster, make_layer):
    mesh, other = cluster.connect(), cluster.connect()
    tables, (_, same) = make_tables(mesh, ["cold", "cold"]), make_tables(other, ["cold", "cold"])
    layer = make_layer(tables)
    ids = np.stack([np.arange(0, 100, 7), np.arange(15)], 1)
    wanted = ids if make_layer is RemoteEmbedding else [column[:, None] for column in ids.T]

    with autograd.context(mesh) as ctx:
        rows = layer(wanted)
        assert layer.prefetch(wanted)
        (ahead,) = layer._source._prefetched
        ahead._fetched.result()
        autograd.backward(ctx, [rows.sum()])
        autograd.apply(ctx)
    ahead._early.result()
    same.push(ids[:3, 0], np.ones((3, 5), np.float32))
    with autograd.context(mesh) as ctx:
        rows = layer(wanted)
        autograd.backward(ctx, [rows.sum()])
        seen = rows.data.reshape((*ids.shape, 5)).copy()
        expected = tables[0].lookup(ids.reshape(-1)).reshape(seen.shape)

    np.testing.assert_array_equal(seen, expected)
    metrics = mesh.table_metrics
    assert metrics.value("prefetch_hits") == 1
    # All of them after the previous step was applied, and some again.
    assert metrics.value("refreshed_rows") > metrics.value("prefetched_rows")


def test_a_failed_peek_at_the_changes_falls_back_to_a_refresh(cluster, monkeypatch):
    mesh = cluster.connect()
    (table,) = make_tables(mesh, ["cold"])
    layer = RemoteEmbedding(table)
    ids = np.arange(0, 500, 7)

    def fail(self, mark, deadline):
        raise InvalidFrame("the line is bad")

    monkeypatch.setattr("gradmesh.sdk.table.prefetch.Prefetch._refresh_early", fail)
    with autograd.context(mesh) as ctx:
        rows = layer(ids)
        layer.prefetch(ids)
        layer._source._prefetched[0]._fetched.result()
        autograd.backward(ctx, [rows.sum()])
        autograd.apply(ctx)
    with autograd.context(mesh):
        rows = layer(ids)

    np.testing.assert_array_equal(rows.data, table.lookup(ids))
    assert mesh.table_metrics.value("refreshed_rows") == ids.size


def test_a_lookup_that_fails_halfway_leaks_nothing(cluster, monkeypatch):
    mesh = cluster.connect()
    (table,) = make_tables(mesh, ["cold"])
    layer = RemoteEmbedding(table)
    ids = np.arange(0, 500, 7)
    replace, calls = prefetch._replace, []

    def replace_or_fail(*args):
        calls.append(args)
        if len(calls) == 2:
            raise InvalidFrame("the second server sends nonsense")
        replace(*args)

    monkeypatch.setattr(prefetch, "_replace", replace_or_fail)
    with autograd.context(mesh) as ctx:
        rows = layer(ids)
        layer.prefetch(ids)
        ahead = layer._source._prefetched[0]
        ahead._fetched.result()
        autograd.backward(ctx, [rows.sum()])
        autograd.apply(ctx)
    assert isinstance(ahead._early.exception(), InvalidFrame)
    with autograd.context(mesh):
        rows = layer(ids)

    np.testing.assert_array_equal(rows.data, table.lookup(ids))
    assert len(calls) == 4


def test_rows_that_others_set_are_refreshed(cluster, tmp_path):
    mesh = cluster.connect()
    (table,) = make_tables(mesh, ["cold"])
    layer = RemoteEmbedding(table)
    ids = np.arange(0, 500, 7)
    table.lookup(ids)
    mesh.export_table(table, tmp_path / "rows.npz")
    table.push(ids, np.ones((ids.size, 5), np.float32))

    with autograd.context(mesh):
        assert layer.prefetch(ids)
        mesh.import_table(table, tmp_path / "rows.npz")
        rows = layer(ids)

    np.testing.assert_array_equal(rows.data, table.lookup(ids))


def test_other_ids_than_prefetched_are_looked_up(cluster):
    mesh = cluster.connect()
    (table,) = make_tables(mesh, ["cold"])
    layer = RemoteEmbedding(table)

    with autograd.context(mesh) as ctx:
        layer.prefetch([1, 2, 3])
        rows = layer([3, 2, 1])
        autograd.backward(ctx, [rows.sum()])
        autograd.apply(ctx)

    assert mesh.table_metrics.value("prefetch_misses") == 1
    assert [store.contexts.open_count() for store in cluster.stores] == [0, 0]


def test_depth_is_kept_and_unused_prefetches_are_dropped(cluster, eventually):
    mesh = cluster.connect()
    (table,) = make_tables(mesh, ["cold"])
    shallow, off = RemoteEmbedding(table), RemoteEmbedding(table, prefetch_depth=0)

    assert not shallow.prefetch([1])
    with autograd.context(mesh):
        assert [shallow.prefetch([1]), shallow.prefetch([2]), off.prefetch([1])] == [
            True,
            False,
            False,
        ]
        eventually(lambda: sum(store.contexts.open_count() for store in cluster.stores) == 1)
        shallow.discard_prefetched()

    assert sum(store.contexts.open_count() for store in cluster.stores) == 0


def test_a_restarted_server_is_dialled_again(cluster):
    mesh = cluster.connect()
    (table,) = make_tables(mesh, ["cold"])
    layer = RemoteEmbedding(table)
    ids = np.arange(500)
    table.push(ids, np.ones((500, 5), np.float32))

    with autograd.context(mesh) as ctx:
        layer.prefetch(ids)
        layer._source._prefetched[0]._fetched.result()
        cluster.restart_server(0)
        rows = layer(ids)
        autograd.backward(ctx, [rows.sum()])
        autograd.apply(ctx)

    assert mesh.table_metrics.value("prefetch_hits") == 0
    moved = cluster.stores[0].table("cold", mesh.connection.deadline())
    assert moved.steps == 1


LIFETIMES = {
    "hash": {},
    "hash that evicts": {"eviction": Eviction.lru(), "max_bytes": 4096 * 80},
    "hash that admits": {"admission": Admission.frequency(2)},
}


@pytest.mark.parametrize("options", LIFETIMES.values(), ids=LIFETIMES)
def test_prefetching_changes_no_bit_of_tables_whose_rows_come_and_go(make_cluster, options):
    def train_hash(depth):
        mesh = make_cluster(trainers=1).connect("trainer-0", role="trainer")
        table = mesh.table("ids", dim=4, optimizer=optim.SGD(lr=0.1), **options)
        layer = RemoteEmbedding(table, prefetch_depth=depth)
        place = mesh.connection.join_trainers(10)
        mesh.connection.start_run(place, [table.name])
        rng = np.random.default_rng(0)
        # Some ids come in every batch, most in one or two.
        hot, cold = np.arange(200), rng.integers(-(2**62), 2**62, 9000)
        batches = [np.concatenate([hot, rng.choice(cold, 2500)]) for _ in range(STEPS)]
        losses = []
        for step, ids in enumerate(batches):
            with autograd.step_context(mesh, place.mark(step)) as ctx:
                rows = layer(ids)
                if step + 1 < STEPS:
                    layer.prefetch(batches[step + 1])
                loss = (rows * rows).sum()
                autograd.backward(ctx, [loss])
                autograd.apply(ctx)
            losses.append(loss.item())
        return (
            losses,
            table.lookup(hot),
            table.lookup(cold),
            mesh.table_metrics.value("prefetch_hits"),
        )

    plain, ahead = train_hash(0), train_hash(1)

    assert ahead[0] == plain[0]
    np.testing.assert_array_equal(ahead[1], plain[1])
    np.testing.assert_array_equal(ahead[2], plain[2])
    assert (plain[3], ahead[3]) == (0, STEPS - 1)


JOB = JobSpec(
    job=JobConfig(
        steps=6, batch_size=16, table_learning_rate=5.0, learning_rate=0.5, eval_batches=2,
        log_every=2, seed=3,
    ),
    data=DataConfig(rows=(50, 20), dense_features=4),
    model=ModelConfig(dim=4, bottom=(8,), top=(8,)),
)  # fmt: skip


@pytest.mark.parametrize("depth", [1, 3])
def test_a_job_that_prefetches_ends_with_the_same_figures(make_cluster, depth):
    def train_job(depth):
        job = dataclasses.replace(JOB.job, prefetch_depth=depth)
        spec = dataclasses.replace(JOB, job=job)
        cluster = make_cluster(trainers=2)
        source = spec.source()

        def train_rank(name):
            mesh = cluster.connect(name, role="trainer")
            place = mesh.connection.join_trainers(10)
            with mesh, TrainingRun(mesh, place, spec, source, Endpoint()) as run:
                figures = run.train(lambda: False)
                parameters = [p.data.tobytes() for p in run.model.parameters()]
                hits = mesh.table_metrics.value("prefetch_hits")
            same = {name: figures[name] for name in figures if "auc" in name or "loss" in name}
            return place.rank, same, parameters, hits

        with ThreadPoolExecutor(2) as pool:
            return sorted(pool.map(train_rank, ["trainer-0", "trainer-1"], timeout=120))

    plain, ahead = train_job(0), train_job(depth)

    assert [rank[:3] for rank in ahead] == [rank[:3] for rank in plain]
    assert plain[0][1]
    assert [rank[3] for rank in ahead] == [JOB.job.steps - 1] * 2
    assert [rank[3] for rank in plain] == [0, 0]

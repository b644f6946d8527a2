"""Resharding while trainers train changes no bit."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gradmesh.sdk import autograd
from gradmesh.sdk.cluster.scaling import scale
from gradmesh.sdk.nn import RemoteEmbedding
from tests.integration.reshard_trainer import IDS, ROWS, Trainer, grow

STEPS = 100
AT = 10
LAST = 90


def pace(step, arrived, changed):
    """Make a change during a run: begun at one step, done before another."""
    if step == AT:
        arrived.set()
    if step > AT and not changed.is_set():
        changed.wait(0.01 if step < LAST - 1 else 60)


@pytest.fixture
def pool():
    with ThreadPoolExecutor(8) as pool:
        yield pool


def run(cluster, pool, change=None, staleness=None):
    """Train with two trainers while something changes; return all rows."""
    trainers = [Trainer(cluster, f"trainer-{i}") for i in range(2)]
    joins = [pool.submit(trainer.mesh.connection.join_trainers, 10) for trainer in trainers]
    for trainer, joined in zip(trainers, joins, strict=True):
        trainer.place = joined.result(15)
    trainers.sort(key=lambda trainer: trainer.place.rank)
    names = [table.name for table in trainers[0].tables]
    trainers[0].mesh.connection.start_run(trainers[0].place, names, staleness=staleness)
    arrived, changed = threading.Event(), threading.Event()
    if change is None:
        changed.set()
    jobs = [
        pool.submit(trainer.train, range(STEPS), lambda step: pace(step, arrived, changed))
        for trainer in trainers
    ]
    if change is not None:
        assert arrived.wait(120)
        try:
            change()
        finally:
            changed.set()
    for job in jobs:
        job.result(60)
    return read(trainers[0])


def read(trainer):
    return {table.name: table.lookup(IDS).tobytes() for table in trainer.tables}


@pytest.mark.parametrize(("before", "after"), [(2, 3), (1, 4), (3, 2), (4, 1)])
def test_training_resumes_with_the_same_bits(make_cluster, pool, before, after):
    expected = run(make_cluster(lease_s=30.0, parameter_servers=before, trainers=2), pool)
    cluster = make_cluster(lease_s=30.0, parameter_servers=before, trainers=2)

    def change():
        for number in range(before, after):
            cluster.add_server(f"ps-{number}")
        with cluster.connect() as mesh:
            scale(mesh.connection, after, timeout_s=30.0)

    found = run(cluster, pool, change)

    assert found == expected
    assert AT < cluster.coordinator.machine.scaling.reshards.state.step <= LAST
    assert len(cluster.coordinator.machine.shards.map.shards) == after
    assert cluster.coordinator.machine.rendezvous.current == 1


def test_a_run_with_staleness_resumes(make_cluster, pool):
    cluster = make_cluster(lease_s=30.0, parameter_servers=2, trainers=2)

    def change():
        grow(cluster, "ps-2")
        with cluster.connect() as mesh:
            scale(mesh.connection, 3, timeout_s=30.0)

    run(cluster, pool, change, staleness=4)

    runs = [store.steps.run for store in cluster.stores]
    assert [run.own_steps for run in runs] == [[STEPS, STEPS]] * 3
    assert cluster.coordinator.machine.rendezvous.current == 1


def test_prefetched_rows_are_looked_up_again(make_cluster, pool):
    ids = [np.random.default_rng(step).integers(0, ROWS, 64) for step in range(30)]

    def train(cluster, change=lambda: None):
        trainer = Trainer(cluster, "trainer-0")
        trainer.place = trainer.mesh.connection.join_trainers(10)
        trainer.mesh.connection.start_run(trainer.place, [table.name for table in trainer.tables])
        layer = RemoteEmbedding(trainer.tables[0], prefetch_depth=2)
        for step in range(30):
            if step == 10:
                change()
            with autograd.step_context(trainer.mesh, trainer.place.mark(step)) as ctx:
                loss = (layer(ids[step]) ** 2).sum()
                for later in ids[step + 1 : step + 3]:
                    layer.prefetch(later)
                autograd.backward(ctx, [loss])
                autograd.apply(ctx)
        layer.discard_prefetched()
        return read(trainer)["dense"]

    expected = train(make_cluster(lease_s=30.0, parameter_servers=2))
    cluster = make_cluster(lease_s=30.0, parameter_servers=2)

    def change():
        grow(cluster, "ps-2")
        with cluster.connect() as mesh:
            scale(mesh.connection, 3, timeout_s=30.0)

    assert train(cluster, change) == expected

"""Synchronous runs: waiting for peers, and the loss of one of them."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gradmesh.engine import optim
from gradmesh.engine.autograd import no_grad
from gradmesh.protos.coordinator.v1 import membership_pb2
from gradmesh.protos.errors import (
    DeadlineExceeded,
    KeyConflict,
    NotMember,
    StaleGeneration,
    Unreachable,
)
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2
from gradmesh.sdk import autograd
from gradmesh.sdk.cluster.servers import METHODS
from gradmesh.sdk.nn import RemoteEmbedding
from gradmesh.sdk.table.recipe import Initializer


class Trainer:
    """A trainer with a layer over a table of ones."""

    def __init__(self, cluster, name, **options):
        self.mesh = cluster.connect(name, role="trainer", **options)
        self.table = self.mesh.table(
            "user",
            rows=20,
            dim=2,
            optimizer=optim.SGD(lr=1.0),
            initializer=Initializer.constant(1.0),
        )
        self.layer = RemoteEmbedding(self.table)
        self.place = None

    def join(self):
        self.place = self.mesh.connection.join_trainers(10)

    def start_run(self):
        self.mesh.connection.start_run(self.place, [self.table.name])

    def step(self, number, ids=tuple(range(20))):
        with autograd.step_context(self.mesh, self.place.mark(number)) as ctx:
            autograd.backward(ctx, [self.layer(list(ids)).sum()])
            autograd.apply(ctx)


@pytest.fixture
def pool():
    with ThreadPoolExecutor(8) as pool:
        yield pool


def make_trainers(cluster, pool, count=2, **options):
    trainers = [Trainer(cluster, f"trainer-{i}", **options) for i in range(count)]
    for joined in [pool.submit(trainer.join) for trainer in trainers]:
        joined.result(timeout=120)
    trainers.sort(key=lambda trainer: trainer.place.rank)
    trainers[0].start_run()
    return trainers


def step_together(pool, trainers, number):
    for stepped in [pool.submit(trainer.step, number) for trainer in trainers]:
        stepped.result(timeout=120)


def test_ranks_are_by_name_and_one_generation(make_cluster, pool):
    cluster = make_cluster(trainers=3)

    trainers = make_trainers(cluster, pool, 3)

    assert [t.mesh.name for t in trainers] == ["trainer-0", "trainer-1", "trainer-2"]
    assert [(t.place.rank, t.place.world_size) for t in trainers] == [(0, 3), (1, 3), (2, 3)]
    assert {t.place.generation for t in trainers} == {1}


def test_a_step_waits_for_the_gradients_of_all_ranks(make_cluster, pool):
    cluster = make_cluster(trainers=2)
    fast, slow = make_trainers(cluster, pool)

    first = pool.submit(fast.step, 0)
    unchanged = slow.table.lookup(np.arange(20))
    waited = not first.done()
    slow.step(0)
    first.result(timeout=120)
    second = pool.submit(fast.step, 1)
    slow.step(1)
    second.result(timeout=120)

    assert waited
    assert (unchanged == 1).all()
    assert (slow.table.lookup(np.arange(20)) == -1).all()


def test_reading_without_gradients_waits_for_the_step_too(make_cluster, pool):
    cluster = make_cluster(trainers=2)
    fast, slow = make_trainers(cluster, pool, timeout_s=5.0)

    def read():
        with autograd.step_context(fast.mesh, fast.place.mark(1)), no_grad():
            return fast.layer([3]).data

    with pytest.raises(DeadlineExceeded, match="some trainer's gradients are missing"):
        read()
    step_together(pool, [fast, slow], 0)

    assert (read() == 0).all()


@pytest.mark.parametrize("threads", [1, 2])
def test_waiting_lookups_do_not_keep_gradients_out(make_cluster, pool, threads):
    cluster = make_cluster(trainers=4, server_threads=threads)
    trainers = make_trainers(cluster, pool, 4)

    def train(trainer):
        for step in range(4):
            trainer.step(step)

    for job in [pool.submit(train, trainer) for trainer in trainers]:
        job.result(timeout=120)

    assert (trainers[0].table.lookup(np.arange(20)) == -3).all()


def test_a_trainer_that_leaves_releases_waiting_lookups_at_once(make_cluster, pool, eventually):
    cluster = make_cluster(trainers=2, lease_s=30.0)
    fast, slow = make_trainers(cluster, pool, timeout_s=30.0)
    waiting = pool.submit(fast.step, 0)

    begun = time.monotonic()
    slow.mesh.close()
    with pytest.raises(StaleGeneration, match="generation 1 has ended, 2 is current; join again"):
        waiting.result(timeout=120)

    assert time.monotonic() - begun < 10
    eventually(lambda: fast.mesh.connection.generation == 2)
    for node in cluster.servers:
        node.store.fence(2)  # releases calls that wait at a server without the new generation
    assert (fast.table.lookup(np.arange(20)) == 1).all()


def test_a_trainer_that_falls_silent_releases_waiting_lookups(make_cluster, pool, eventually):
    cluster = make_cluster(trainers=2, lease_s=1.5)
    live = Trainer(cluster, "trainer-0", timeout_s=30.0)
    live.table.lookup([1])
    silent = membership_pb2.Member(
        name="trainer-1", role=membership_pb2.ROLE_TRAINER, address="127.0.0.1:1", incarnation=1
    )
    coordinator = live.mesh.connection.coordinator
    joining = pool.submit(live.join)
    coordinator.register(silent, False, live.mesh.connection.deadline())
    coordinator.join_round("trainer-1", 1, 0, live.mesh.connection.deadline())
    joining.result(timeout=120)
    live.start_run()
    coordinator.renew_lease("trainer-1", 1, live.mesh.connection.deadline())

    with pytest.raises(StaleGeneration):
        live.step(1)

    # The response on the lane arrives before the next heartbeat.
    eventually(lambda: live.mesh.connection.generation == 2)
    for node in cluster.servers:
        node.store.fence(2)


def test_a_new_run_starts_from_the_initial_rows(make_cluster, pool):
    cluster = make_cluster(trainers=2)
    first, second = make_trainers(cluster, pool)
    step_together(pool, [first, second], 0)
    lost = second.mesh
    lost.close()

    returned = Trainer(cluster, "trainer-1")
    rejoining = [pool.submit(trainer.join) for trainer in (first, returned)]
    for joined in rejoining:
        joined.result(timeout=120)
    first.start_run()
    rows = first.table.lookup(np.arange(20))
    step_together(pool, [first, returned], 0)

    assert (first.place.generation, first.place.rank) == (2, 0)
    assert (returned.place.generation, returned.place.rank) == (2, 1)
    assert (rows == 1).all()
    assert (first.table.lookup(np.arange(20)) == 0).all()


def test_the_next_generation_resumes_at_the_step_of_all_servers(make_cluster, pool):
    cluster = make_cluster(trainers=2)
    first, second = make_trainers(cluster, pool)
    step_together(pool, [first, second], 0)
    step_together(pool, [first, second], 1)
    waiting = pool.submit(first.step, 2)  # half of the gradients are missing
    second.mesh.close()
    with pytest.raises(StaleGeneration):
        waiting.result(timeout=120)

    returned = Trainer(cluster, "trainer-1")
    for joined in [pool.submit(trainer.join) for trainer in (first, returned)]:
        joined.result(timeout=120)
    state = first.mesh.connection.find_run(first.place)
    begun = first.mesh.connection.start_run(first.place, ["user"], state=state)
    rows = first.table.lookup(np.arange(20))
    step_together(pool, [first, returned], 2)

    assert (state.origin, state.steps) == (1, 2)
    assert begun == state
    assert (rows == -1).all()
    assert (first.table.lookup(np.arange(20)) == -2).all()


def test_a_step_is_dropped_unless_all_servers_have_prepared_it(make_cluster):
    cluster = make_cluster(trainers=1)
    trainer = Trainer(cluster, "trainer-0")
    trainer.join()
    trainer.start_run()
    trainer.step(0)
    shards = trainer.mesh.connection.servers.held_map()
    channels = [trainer.mesh.connection.servers.channel(shards, i) for i in range(2)]
    with autograd.step_context(trainer.mesh, trainer.place.mark(1)) as ctx:
        autograd.backward(ctx, [trainer.layer(np.arange(20)).sum()])
        # One server gets the new generation, the other one does not.
        request = parameter_server_pb2.ApplyRequest(context=ctx.id, mark=ctx.mark)
        channels[0].call(METHODS["Apply"], request, trainer.mesh.connection.deadline())
    prepared = [s.steps.run.prepared_steps for s in cluster.stores]

    trainer.join()
    state = trainer.mesh.connection.find_run(trainer.place)
    trainer.mesh.connection.start_run(trainer.place, ["user"], state=state)
    rows = trainer.table.lookup(np.arange(20))
    trainer.step(1)

    assert sorted(prepared) == [1, 2]
    assert state.steps == 1
    assert (rows == 0).all()
    assert (trainer.table.lookup(np.arange(20)) == -1).all()


def test_with_staleness_a_rank_may_be_ahead_up_to_the_bound(make_cluster, pool):
    cluster = make_cluster(trainers=2)
    trainers = [Trainer(cluster, f"trainer-{i}", timeout_s=5.0) for i in range(2)]
    for joined in [pool.submit(trainer.join) for trainer in trainers]:
        joined.result(timeout=120)
    fast, slow = sorted(trainers, key=lambda trainer: trainer.place.rank)
    fast.mesh.connection.start_run(fast.place, ["user"], staleness=2)

    for step in range(3):
        fast.step(step)
    with pytest.raises(DeadlineExceeded, match="some trainer's gradients are missing"):
        fast.step(3)
    lag = [store.lag_steps() for store in cluster.stores]
    slow.step(0)
    fast.step(3)

    assert lag == [3, 3]
    assert (slow.table.lookup(np.arange(20)) == -4).all()
    assert (fast.table.lookup(np.arange(20)) == -4).all()


def test_messages_of_an_old_generation_are_refused(make_cluster):
    cluster = make_cluster(trainers=1)
    trainer = Trainer(cluster, "trainer-0")
    trainer.join()
    trainer.start_run()
    old = trainer.place

    with autograd.step_context(trainer.mesh, old.mark(0)) as ctx:
        autograd.backward(ctx, [trainer.layer(np.arange(20)).sum()])
        trainer.join()
        trainer.start_run()
        with pytest.raises(StaleGeneration, match="join again"):
            autograd.apply(ctx)

    assert trainer.place.generation == old.generation + 1
    assert (trainer.table.lookup(np.arange(20)) == 1).all()
    assert [s.contexts.open_count() for s in cluster.stores] == [0, 0]


def test_a_partly_failed_lookup_leaks_nothing(make_cluster):
    cluster = make_cluster(trainers=1)
    trainer = Trainer(cluster, "trainer-0")
    trainer.join()
    trainer.start_run()
    cluster.stores[1].fence(99)

    with pytest.raises(StaleGeneration):
        trainer.step(0)

    assert [s.contexts.open_count() for s in cluster.stores] == [0, 0]


def test_a_server_that_restarts_ends_the_generation(make_cluster, eventually):
    cluster = make_cluster(trainers=1)
    trainer = Trainer(cluster, "trainer-0")
    trainer.join()
    trainer.start_run()
    trainer.step(0)

    cluster.restart_server(1)
    eventually(lambda: trainer.mesh.connection.generation == 2)
    with pytest.raises(StaleGeneration):
        trainer.step(1)
    trainer.join()
    trainer.start_run()
    trainer.step(0)

    assert trainer.place.generation == 2
    assert (trainer.table.lookup(np.arange(20)) == 0).all()


def test_a_surplus_trainer_waits_without_disturbing_the_run(make_cluster, pool, eventually):
    cluster = make_cluster(trainers=1)
    trainer = Trainer(cluster, "trainer-0")
    trainer.join()
    trainer.start_run()
    spare = Trainer(cluster, "trainer-1")

    waiting = pool.submit(spare.join)
    trainer.step(0)
    undisturbed = not waiting.done() and cluster.coordinator.machine.rendezvous.current == 1
    trainer.mesh.close()
    waiting.result(timeout=120)

    assert undisturbed
    assert (spare.place.generation, spare.place.rank) == (2, 0)


def test_keys_reach_the_other_trainers_of_a_generation_only(make_cluster, pool):
    cluster = make_cluster(trainers=2)
    first, second = make_trainers(cluster, pool)
    one, other = (t.mesh.connection.store(t.place.generation) for t in (first, second))

    waiting = pool.submit(other.get, "address", 10)
    one.set("address", b"here")
    one.set("address", b"here")
    with pytest.raises(KeyConflict, match="'address'"):
        other.set("address", b"there")
    with pytest.raises(DeadlineExceeded, match="'nothing' is not published"):
        other.get("nothing", 2.0)
    late = pool.submit(other.get, "later", 10)
    first.mesh.close()

    assert waiting.result(timeout=120) == b"here"
    with pytest.raises(StaleGeneration):
        late.result(timeout=120)
    with pytest.raises(StaleGeneration):
        other.set("address", b"here")


def test_more_waiting_trainers_than_threads_do_not_block_other_calls(make_cluster, eventually):
    cluster = make_cluster(trainers=40)
    watcher = cluster.connect()
    meshes = [cluster.connect(f"trainer-{i}", role="trainer", timeout_s=30.0) for i in range(4)]

    def wait_for_the_others(mesh):
        with pytest.raises((NotMember, Unreachable)):
            mesh.connection.join_trainers(60)

    with ThreadPoolExecutor(24) as many:
        jobs = [many.submit(wait_for_the_others, meshes[i % 4]) for i in range(24)]
        eventually(lambda: cluster.coordinator.servicer._waiters >= 8)  # half of the threads
        watcher.connection.coordinator.get_status(
            watcher.connection.deadline(4.0)
        )  # they wait for 5 s at a time
        for mesh in meshes:
            mesh.close()
        for job in jobs:
            job.result(timeout=120)

"""Resharding with clients outside a run, and aborted reshards."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gradmesh.engine import optim
from gradmesh.protos.coordinator.v1 import reshard_pb2
from gradmesh.protos.errors import (
    InvalidRequest,
    LookupNotFound,
    ReshardAborted,
    ReshardUnderWay,
    SnapshotLost,
    StaleShardMap,
)
from gradmesh.protos.frame import Frame
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2
from gradmesh.sdk import autograd
from gradmesh.sdk.checkpoint.snapshot import Snapshot
from gradmesh.sdk.cluster.scaling import scale
from gradmesh.sdk.nn import RemoteEmbedding
from gradmesh.sdk.serving.reader import TableReader
from tests.integration.reshard_trainer import IDS, ROWS, Trainer, grow, ones_table


@pytest.fixture
def pool():
    with ThreadPoolExecutor(8) as pool:
        yield pool


class Busy:
    """Repeats a function in a thread until stopped."""

    def __init__(self, pool, do):
        self._stopping = threading.Event()
        self.count = 0
        self._do = do
        self._job = pool.submit(self._run)

    def _run(self):
        while not self._stopping.is_set():
            self._do()
            self.count += 1

    def stop(self):
        self._stopping.set()
        self._job.result(30)
        return self.count


def test_pushes_count_once_and_lookups_continue(make_cluster, pool):
    cluster = make_cluster(lease_s=30.0, parameter_servers=1)
    table = ones_table(cluster.connect(timeout_s=30.0))
    seen = [np.zeros((ROWS, 2), np.float32)]

    def push():
        table.push(IDS, np.full((ROWS, 2), -1.0, np.float32))

    def look():
        found = reader.lookup("counts", IDS)
        # No row goes back: reads of the former owner are refused.
        assert (found >= seen[0]).all()
        seen[0] = found

    push()
    with TableReader(cluster.address) as reader, cluster.connect() as mesh:
        busy = [Busy(pool, push), Busy(pool, look)]
        grow(cluster, "ps-1", "ps-2", "ps-3")
        for count in (4, 2, 3, 1):
            scale(mesh.connection, count, timeout_s=30.0)
        pushes, looks = [one.stop() for one in busy]

    assert looks > 0
    assert (table.lookup(IDS) == pushes + 1).all()


def test_a_push_by_an_old_map_is_deduplicated_or_was_never_applied(make_cluster, raw):
    cluster = make_cluster(lease_s=30.0, parameter_servers=1)
    mesh = cluster.connect(timeout_s=30.0)
    ones_table(mesh).lookup(IDS)
    epoch = mesh.connection.servers.shard_map(mesh.connection.deadline()).epoch

    def push(sequence):
        message = parameter_server_pb2.PushRequest(
            worker="raw", incarnation=1, sequence=sequence, shard_epoch=epoch, tables=["counts"]
        )
        request = Frame(message, [np.array([1]), np.ones((1, 2), np.float32)])
        return raw(cluster.servers[0].server.address, "Push", request, 5.0).applied

    first = push(1)
    grow(cluster, "ps-1")
    scale(mesh.connection, 2, timeout_s=30.0)

    assert (first, push(1)) == (True, False)
    with pytest.raises(StaleShardMap):
        push(2)


@pytest.mark.parametrize("again", [False, True], ids=["alone", "before-the-next"])
def test_a_server_that_leaves_late_changes_no_row(make_cluster, pool, again):
    cluster = make_cluster(lease_s=30.0, parameter_servers=2)
    table, mesh = ones_table(cluster.connect(timeout_s=30.0)), cluster.connect(timeout_s=30.0)
    table.lookup(IDS)
    leaving = cluster.servers[1]
    sent, is_pushed, is_over = threading.Event(), threading.Event(), threading.Event()
    report = leaving.mover._report

    def report_late(request, version):
        if request.done == reshard_pb2.RESHARD_PHASE_SENDING and not sent.is_set():
            sent.set()
            assert is_pushed.wait(120)
            report(request, version)
            assert is_over.wait(120)
            return report(leaving.mover._asking(), 0)
        return report(request, version)

    leaving.mover._report = report_late
    scaled = pool.submit(scale, mesh.connection, 1, timeout_s=30.0)
    assert sent.wait(120)
    # The gate of the leaving server is shut, and the map is still the old one.
    pushed = pool.submit(table.push, IDS, np.full((ROWS, 2), -1.0, np.float32))
    while not leaving.store.gate._waiters:
        assert not pushed.done()
        time.sleep(0.01)
    is_pushed.set()
    scaled.result(30)
    if again:
        mesh.connection.coordinator.scale_parameter_servers(2, 30.0, mesh.connection.deadline())
    else:
        leaving.mesh.connection.servers.refresh(leaving.mesh.connection.deadline())
    is_over.set()
    pushed.result(30)
    if again:
        scale(mesh.connection, 2, timeout_s=30.0)

    assert (table.lookup(IDS) == 1).all()
    assert len(mesh.connection.servers.refresh(mesh.connection.deadline()).names) == (
        2 if again else 1
    )


def test_contexts_outside_a_run_continue(make_cluster, pool):
    cluster = make_cluster(lease_s=30.0, parameter_servers=2)
    mesh = cluster.connect(timeout_s=30.0)
    table = ones_table(mesh)
    layer = RemoteEmbedding(table)

    def step():
        with autograd.context(mesh) as ctx:
            autograd.backward(ctx, [layer(IDS).sum()])
            autograd.apply(ctx)

    step()
    with cluster.connect() as other:
        busy = Busy(pool, step)
        grow(cluster, "ps-2")
        scale(other.connection, 3, timeout_s=30.0)
        scale(other.connection, 1, timeout_s=30.0)
        steps = busy.stop()

    assert (table.lookup(IDS) == -(steps + 1)).all()


def test_a_context_that_delays_a_reshard_too_long_loses_its_lookups(make_cluster):
    cluster = make_cluster(lease_s=30.0, parameter_servers=1)
    mesh = cluster.connect()
    table = ones_table(mesh)
    layer = RemoteEmbedding(table)
    with autograd.context(mesh) as ctx:
        loss = layer(IDS).sum()
        grow(cluster, "ps-1")
        with cluster.connect() as other:
            scale(other.connection, 2, timeout_s=30.0)
        with pytest.raises(LookupNotFound):
            autograd.backward(ctx, [loss])

    assert (table.lookup(IDS) == 0).all()


def test_a_checkpoint_begun_before_a_reshard_holds_the_rows_of_its_start(make_cluster):
    cluster = make_cluster(lease_s=30.0, parameter_servers=2)
    mesh = cluster.connect()
    table = ones_table(mesh)
    push = np.full((ROWS, 2), -1.0, np.float32)
    table.push(IDS, push)
    options = {"freeze_s": 5.0, "call_s": 5.0}
    with Snapshot.take(mesh.connection.servers, ["counts"], **options) as snapshot:
        grow(cluster, "ps-2")
        with cluster.connect() as other:
            scale(other.connection, 3, timeout_s=30.0)
        table.push(IDS, push)
        blocks = [
            block
            for shard in range(2)
            for block in snapshot.pages(shard, "counts", mesh.connection.deadline())
        ]

    ids = np.concatenate([block["ids"] for block in blocks])
    rows = np.concatenate([block["rows"] for block in blocks])
    assert sorted(ids.tolist()) == IDS.tolist()
    assert (rows == 1).all()
    assert (table.lookup(IDS) == 2).all()


def test_a_checkpoint_armed_before_a_reshard_is_refused_after_it(make_cluster):
    cluster = make_cluster(lease_s=30.0, parameter_servers=2)
    mesh = cluster.connect()
    ones_table(mesh).lookup(IDS)
    options = {"freeze_s": 5.0, "call_s": 5.0}
    with Snapshot.request(mesh.connection.servers, ["counts"], 5, **options) as snapshot:
        grow(cluster, "ps-2")
        with cluster.connect() as other:
            scale(other.connection, 3, timeout_s=30.0)
        with pytest.raises(SnapshotLost, match="rows have moved"):
            snapshot.wait(mesh.connection.deadline())


def test_a_reshard_beyond_the_memory_of_a_server_is_aborted(make_cluster):
    cluster = make_cluster(lease_s=30.0, parameter_servers=2, max_store_bytes=1 << 20)
    mesh = cluster.connect()
    # Half of it fits into the memory of a server, all of it does not.
    table = mesh.table("big", rows=40_000, dim=8, optimizer=optim.SGD(lr=1.0))
    before = table.lookup(IDS)

    with pytest.raises(ReshardAborted, match="raise max_store_bytes"):
        scale(mesh.connection, 1, timeout_s=30.0)

    assert cluster.coordinator.machine.shards.map.epoch == 1
    assert (table.lookup(IDS) == before).all()
    table.push(IDS, np.ones((ROWS, 8), np.float32))
    assert (table.lookup(IDS) == before - 1).all()


def test_a_move_of_hash_rows_that_do_not_fit_is_aborted(make_cluster):
    cluster = make_cluster(lease_s=30.0, parameter_servers=2, max_store_bytes=1 << 21)
    mesh = cluster.connect()
    table = mesh.table("big", dim=8, optimizer=optim.SGD(lr=1.0))
    many = np.arange(45_000)
    table.lookup(many)

    with pytest.raises(ReshardAborted, match="raise max_store_bytes"):
        scale(mesh.connection, 1, timeout_s=30.0)

    assert cluster.coordinator.machine.shards.map.epoch == 1
    assert table.lookup(many).shape == (45_000, 8)


def test_waiting_for_missing_servers_has_a_limit(make_cluster):
    cluster = make_cluster(lease_s=30.0, parameter_servers=1)
    mesh = cluster.connect()

    with pytest.raises(ReshardAborted, match=r"fewer than 2 .* within 0.3 s; start the others"):
        scale(mesh.connection, 2, wait_s=0.3)

    assert cluster.coordinator.machine.shards.map.epoch == 1


def test_another_number_meanwhile_is_refused(make_cluster):
    cluster = make_cluster(lease_s=30.0, parameter_servers=1)
    mesh = cluster.connect()
    mesh.connection.coordinator.scale_parameter_servers(3, 30.0, mesh.connection.deadline())

    with pytest.raises(ReshardUnderWay, match="to 3 already, not to 2"):
        scale(mesh.connection, 2)
    with pytest.raises(InvalidRequest):
        scale(mesh.connection, 0)

    grow(cluster, "ps-1", "ps-2")
    assert scale(mesh.connection, 3, timeout_s=30.0).number == 1


def test_a_table_that_is_reset_while_it_moves_ends_the_reshard(make_cluster):
    cluster = make_cluster(lease_s=30.0, parameter_servers=1, trainers=1)
    trainer = Trainer(cluster, "trainer-0")
    trainer.place = trainer.mesh.connection.join_trainers(10)
    (store,) = cluster.stores
    trainer.mesh.connection.start_run(trainer.place, [table.name for table in trainer.tables])
    trainer.train(range(3), lambda step: None)
    held = threading.Event()
    migration = store.registry["dense"].changes.migration
    take = migration.take_changed

    def reset_first():
        store.registry["dense"].reset()
        held.set()
        return take()

    migration.take_changed = reset_first
    grow(cluster, "ps-1")
    with pytest.raises(ReshardAborted, match="was reset or restored while its rows migrated"):
        scale(trainer.mesh.connection, 2, timeout_s=30.0)
    assert held.is_set()


@pytest.mark.parametrize(
    "phase",
    [
        *[pytest.param(p, marks=pytest.mark.slow) for p in ("copying", "stopping", "draining")],
        "sending",
        "adopting",
    ],
)
def test_a_restarted_coordinator_process_resumes(make_cluster, tmp_path, phase):
    cluster = make_cluster(lease_s=30.0, parameter_servers=2, state_dir=tmp_path)
    table = ones_table(cluster.connect(timeout_s=30.0))
    table.push(IDS, np.full((ROWS, 2), -1.0, np.float32))
    number = getattr(reshard_pb2, f"RESHARD_PHASE_{phase.upper()}")
    reshards = cluster.coordinator.machine.scaling.reshards
    stopping = threading.Event()
    enter = reshards._enter

    def stop_here(entered, *rest):
        enter(entered, *rest)
        if entered == number:
            stopping.set()

    reshards._enter = stop_here
    grow(cluster, "ps-2")
    with cluster.connect(timeout_s=30.0) as mesh:
        mesh.connection.coordinator.scale_parameter_servers(3, 30.0, mesh.connection.deadline())
        assert stopping.wait(120)
        cluster.stop_coordinator()
        cluster.start_coordinator()
        done = scale(mesh.connection, 3, timeout_s=30.0)

    assert len(cluster.coordinator.machine.shards.map.shards) == 3
    assert done.phase == reshard_pb2.RESHARD_PHASE_DONE
    assert (table.lookup(IDS) == 1).all()

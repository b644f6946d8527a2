"""Joining and leaving a mesh, and restarts of its processes."""

import logging
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gradmesh.engine import optim
from gradmesh.protos.coordinator.v1 import membership_pb2
from gradmesh.protos.errors import (
    DeadlineExceeded,
    InvalidRequest,
    NameTaken,
    NotMember,
    ProtocolMismatch,
    Unauthenticated,
    Unreachable,
)
from gradmesh.sdk import autograd
from gradmesh.sdk.mesh.connect import connect, join_mesh
from gradmesh.sdk.nn import RemoteEmbedding
from gradmesh.sdk.process.network import SecurityConfig
from gradmesh.sdk.table.recipe import Initializer
from gradmesh.sdk.transport.policy import Timeouts


def members(cluster):
    return {lease.member.name for lease in cluster.coordinator.machine.members.leases()}


def make_table(mesh, rows=40):
    return mesh.table(
        "user",
        rows=rows,
        dim=2,
        optimizer=optim.SGD(lr=1.0),
        initializer=Initializer.constant(1.0),
    )


def test_a_client_joins_and_leaves(cluster):
    with cluster.connect("visitor") as mesh:
        inside = members(cluster)

    mesh.close()

    assert inside == {"ps-0", "ps-1", "visitor"}
    assert members(cluster) == {"ps-0", "ps-1"}
    assert repr(mesh) == f"Mesh('visitor' at '{cluster.address}')"


def test_a_name_belongs_to_one_live_process(cluster):
    first = cluster.connect("worker")

    with pytest.raises(NameTaken, match=r"'worker' is held .*choose another name"):
        cluster.connect("worker", timeout_s=2.0)

    assert "worker" in members(cluster)
    first.connection.coordinator.renew_lease(
        "worker", first.connection.incarnation, first.connection.deadline()
    )


def test_a_name_is_free_again_when_its_lease_has_run_out(make_cluster):
    cluster = make_cluster(lease_s=0.5)
    mesh = cluster.connect()
    gone = membership_pb2.Member(name="w", role=membership_pb2.ROLE_CLIENT, incarnation=1)

    begun = time.monotonic()
    mesh.connection.coordinator.register(gone, False, mesh.connection.deadline())
    cluster.connect("w", timeout_s=30.0)

    assert time.monotonic() - begun > 0.3


def test_a_process_whose_name_is_taken_is_notified(cluster):
    lost = threading.Event()
    former = cluster.connect("worker", on_lost=lost.set)

    cluster.connect("worker", replace=True)
    was_notified = lost.wait(120)
    former.close()

    assert was_notified
    assert "worker" in members(cluster)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "no name"}, "is not a name for a worker"),
        ({"name": "x" * 300}, "is not a name"),
        ({"role": "boss"}, "no role 'boss'; there are client, trainer"),
        ({"role": "parameter-server"}, "has no address"),
        ({"incarnation": 0}, "no incarnation"),
    ],
)
def test_a_process_without_a_valid_identity_is_refused(cluster, options, message):
    with pytest.raises(InvalidRequest, match=message):
        join_mesh(cluster.address, **{"name": "someone", **options})

    assert members(cluster) == {"ps-0", "ps-1"}


def test_another_version_of_the_contract_is_refused(cluster, raw):
    member = membership_pb2.Member(name="old", role=membership_pb2.ROLE_CLIENT, incarnation=1)

    with pytest.raises(ProtocolMismatch, match="same version of gradmesh"):
        raw(cluster.address, "Register", membership_pb2.RegisterRequest(member=member))

    assert "old" not in members(cluster)


def test_joining_requires_the_right_token(make_cluster, tmp_path):
    (tmp_path / "right").write_text("open-sesame")
    (tmp_path / "wrong").write_text("open-barley")
    cluster = make_cluster(security=SecurityConfig(token_file=tmp_path / "right"))

    with pytest.raises(Unauthenticated, match=r"token is wrong.*security\.token_file"):
        cluster.connect("thief", security=SecurityConfig(token_file=tmp_path / "wrong"))
    with pytest.raises(Unauthenticated, match="requires a token"):
        cluster.connect("thief", security=SecurityConfig())

    assert make_table(cluster.connect()).lookup([1]).shape == (1, 2)
    assert "thief" not in members(cluster)


def test_a_coordinator_that_is_not_there_is_named():
    with pytest.raises(Unreachable, match=r"coordinator at 127\.0\.0\.1:1, Register"):
        connect("127.0.0.1:1", timeouts=Timeouts(join_s=2.0))


def test_missing_servers_are_counted(make_cluster):
    cluster = make_cluster(parameter_servers=2, start_servers=False)
    cluster.add_server("ps-0")
    table = make_table(cluster.connect())

    with pytest.raises(DeadlineExceeded, match="1 of 2 parameter servers have joined: ps-0"):
        table.lookup([1], timeout_s=2.0)


def test_a_lookup_waits_for_the_servers(make_cluster):
    cluster = make_cluster(parameter_servers=2, start_servers=False)
    table = make_table(cluster.connect())

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(table.lookup, np.arange(40))
        cluster.add_server("ps-0")
        cluster.add_server("ps-1")
        rows = waiting.result(timeout=120)

    assert (rows == 1).all()


def test_servers_keep_their_shards_when_others_join(make_cluster):
    cluster = make_cluster(parameter_servers=2, start_servers=False)
    cluster.add_server("ps-1")
    cluster.add_server("ps-2")
    table = make_table(cluster.connect())
    table.push(np.arange(40), np.ones((40, 2), np.float32))

    cluster.add_server("ps-0")

    assert (cluster.connect().open_table("user").lookup(np.arange(40)) == 0).all()


def test_a_server_that_moved_is_found_again(cluster):
    mesh = cluster.connect()
    table = make_table(mesh)
    layer = RemoteEmbedding(table)
    table.push(np.arange(40), np.ones((40, 2), np.float32))
    held = cluster.servers[0].store.table("user", mesh.connection.deadline()).row_count

    cluster.restart_server(1)
    rows = table.lookup(np.arange(40))
    table.push(np.arange(40), np.ones((40, 2), np.float32))
    with autograd.context(mesh) as ctx:
        autograd.backward(ctx, [layer(np.arange(40)).sum()])
        autograd.apply(ctx)

    # The server that stayed has its rows, the fresh one has initial ones; both continue to train.
    assert sorted(rows[:, 0]) == [0] * held + [1] * (40 - held)
    assert sorted(table.lookup(np.arange(40))[:, 0]) == [-2] * held + [-1] * (40 - held)


def test_gradients_for_a_server_that_restarted_are_not_lost_silently(cluster):
    mesh = cluster.connect()
    table = make_table(mesh)
    layer = RemoteEmbedding(table)

    with autograd.context(mesh) as ctx:
        autograd.backward(ctx, [layer(np.arange(40)).sum()])
        cluster.restart_server(1)
        table.lookup(np.arange(40))
        with pytest.raises(Unreachable, match="ps-1"):
            autograd.apply(ctx)

    assert cluster.servers[1].store.table("user", mesh.connection.deadline()).steps == 0


def test_members_survive_a_restart_of_the_coordinator(make_cluster, tmp_path, eventually):
    cluster = make_cluster(trainers=1, lease_s=30.0, state_dir=tmp_path)
    trainer = cluster.connect("trainer-0", role="trainer")
    table = make_table(trainer)
    place = trainer.connection.join_trainers(10)
    trainer.connection.start_run(place, [table.name])
    epoch = trainer.connection.servers.shard_map(trainer.connection.deadline()).epoch
    layer = RemoteEmbedding(table)

    def step(number):
        with autograd.step_context(trainer, place.mark(number)) as ctx:
            autograd.backward(ctx, [layer(np.arange(40)).sum()])
            autograd.apply(ctx)

    step(0)
    cluster.stop_coordinator()
    step(1)  # cached maps and tables suffice
    cluster.start_coordinator()
    eventually(lambda: members(cluster) == {"ps-0", "ps-1", "trainer-0"})
    step(2)

    assert (
        trainer.connection.generation
        == place.generation
        == cluster.coordinator.machine.rendezvous.current
    )
    assert trainer.connection.servers.refresh(trainer.connection.deadline()).epoch == epoch
    assert (trainer.open_table("user").lookup(np.arange(40)) == -2).all()


def test_a_trainer_joins_a_coordinator_that_has_just_restarted(make_cluster, tmp_path):
    cluster = make_cluster(trainers=1, lease_s=30.0, state_dir=tmp_path)
    trainer = cluster.connect("trainer-0", role="trainer")
    first = trainer.connection.join_trainers(10)
    cluster.stop_coordinator()
    cluster.start_coordinator()

    second = trainer.connection.join_trainers(10)

    assert second.generation == first.generation + 1


def test_a_trainer_lost_with_the_coordinator_ends_its_generation(
    make_cluster, tmp_path, eventually
):
    cluster = make_cluster(trainers=2, lease_s=2.0, state_dir=tmp_path)
    stays, dies = (cluster.connect(f"trainer-{i}", role="trainer") for i in range(2))
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda mesh: mesh.connection.join_trainers(10), (stays, dies)))
    cluster.stop_coordinator()
    dies.close()

    cluster.start_coordinator()
    eventually(lambda: stays.connection.generation == 2)

    assert not cluster.coordinator.machine.rendezvous.formed


def test_a_lease_thread_warns_and_retries(cluster, caplog, eventually):
    caplog.set_level(logging.WARNING, "gradmesh.sdk.cluster.lease")
    mesh = cluster.connect("worker")

    cluster.stop_coordinator()
    eventually(lambda: "lease not renewed" in caplog.text)
    cluster.start_coordinator()
    eventually(lambda: "worker" in members(cluster))

    assert "registering again" in caplog.text
    assert mesh.connection.coordinator.list_tables(mesh.connection.deadline()) == []


def test_closing_ends_calls_under_way(make_cluster, eventually):
    cluster = make_cluster(trainers=2)
    mesh = cluster.connect("trainer-0", role="trainer", timeout_s=30.0)
    make_table(mesh).lookup([1])

    with ThreadPoolExecutor(2) as pool:
        joining = pool.submit(mesh.connection.join_trainers, 30.0)
        eventually(lambda: "trainer-0" in cluster.coordinator.machine.rendezvous.joined)
        begun = time.monotonic()
        mesh.close()
        with pytest.raises((NotMember, Unreachable)):
            joining.result(timeout=120)

    assert "trainer-0" not in members(cluster)
    assert time.monotonic() - begun < 10


def test_calls_on_a_closed_mesh_say_to_connect_again(cluster):
    mesh = cluster.connect()
    table = make_table(mesh)
    table.lookup([1])
    mesh.close()

    with pytest.raises(Unreachable, match="connect again"):
        table.lookup([1])
    with pytest.raises(Unreachable, match="connect again"):
        table.push([1], np.ones((1, 2), np.float32))
    with pytest.raises(Unreachable, match="connect again"):
        mesh.open_table("user")


def test_closing_without_a_coordinator_is_quick(make_cluster, eventually, monkeypatch):
    cluster = make_cluster(lease_s=0.6)
    mesh = cluster.connect("worker")
    cluster.stop_coordinator()
    eventually(lambda: not mesh.connection._lease._answered)
    leave, allowed_s = mesh.connection.coordinator.leave, []

    def leave_timed(name, incarnation, deadline):
        allowed_s.append(deadline.remaining_s())
        leave(name, incarnation, deadline)

    monkeypatch.setattr(mesh.connection.coordinator, "leave", leave_timed)
    mesh.close()
    cluster.start_coordinator()

    # Leaving an unresponsive coordinator has a short deadline; the thread may take 2 s more.
    assert len(allowed_s) == 1
    assert allowed_s[0] <= 0.2


def test_an_interpreter_ends_though_its_mesh_was_never_closed(cluster):
    code = f"""
from gradmesh.engine import optim
from gradmesh.sdk import autograd
from gradmesh.sdk.mesh.connect import connect
from gradmesh.sdk.nn import RemoteEmbedding
mesh = connect({cluster.address!r})
table = mesh.table("user", rows=10, dim=2, optimizer=optim.SGD(lr=1.0))
opened = autograd.context(mesh)
opened.__enter__()
print(RemoteEmbedding(table)([1, 2]).shape)
"""
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120
    )

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "(2, 2)\n", "")


def test_bytes_moved_survive_a_server_that_moved(cluster):
    mesh = cluster.connect()
    table = make_table(mesh)
    table.lookup(np.arange(40))
    before = mesh.connection.servers.bytes_moved()

    cluster.restart_server(1)
    table.lookup(np.arange(40))

    assert mesh.connection.servers.bytes_moved() > before > 0

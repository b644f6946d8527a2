"""A mesh whose members and clients have tokens of their own roles."""

import numpy as np
import pytest

from gradmesh.engine import optim
from gradmesh.protos.errors import Forbidden
from gradmesh.sdk import autograd
from gradmesh.sdk.cluster.status import fetch
from gradmesh.sdk.nn import RemoteEmbedding
from gradmesh.sdk.process.network import SecurityConfig
from gradmesh.sdk.serving import TableReader

ROLES = ("parameter-server", "trainer", "worker", "client", "reader", "admin")


@pytest.fixture
def roles(tmp_path):
    """The token of each role; servers accept all of them."""
    (tmp_path / "tokens").write_text("".join(f"{role}:token-of-{role}\n" for role in ROLES))
    found = {}
    for role in ROLES:
        (tmp_path / role).write_text(f"token-of-{role}")
        found[role] = SecurityConfig(token_file=tmp_path / role, tokens_file=tmp_path / "tokens")
    return found


@pytest.fixture
def cluster(make_cluster, roles):
    return make_cluster(parameter_servers=2, security=roles["parameter-server"])


def table_of(mesh):
    return mesh.table("user", dim=2, optimizer=optim.SGD(lr=1.0))


def test_a_trainer_trains_and_a_client_pushes(cluster, roles):
    trainer = cluster.connect("trainer-0", role="trainer", security=roles["trainer"])
    client = cluster.connect("visitor", security=roles["client"])
    layer = RemoteEmbedding(table_of(client))

    place = trainer.connection.join_trainers(10)
    table = table_of(trainer)
    trainer.connection.start_run(place, [table.name])
    layer = RemoteEmbedding(table)
    with autograd.step_context(trainer, place.mark(0)) as ctx:
        autograd.backward(ctx, [layer(np.arange(40)).sum()])
        autograd.apply(ctx)
    table_of(client).push([1000], np.ones((1, 2), np.float32))

    assert table_of(client).lookup([1000]).shape == (1, 2)


def test_a_reader_reads_and_changes_nothing(cluster, roles):
    client = cluster.connect("visitor", security=roles["client"])
    table = table_of(client)
    table.push(np.arange(10), np.ones((10, 2), np.float32))
    expected = table.lookup(np.arange(10))

    with TableReader(cluster.address, security=roles["reader"]) as reader:
        rows = reader.lookup("user", np.arange(10))
        # Of unused ids; the lookup of a reader creates no rows.
        fresh = reader.lookup("user", np.arange(100, 150))
        held = [
            store.table("user", client.connection.deadline()).row_count for store in cluster.stores
        ]

    assert (rows == expected).all()
    assert (fresh == table.lookup(np.arange(100, 150))).all()
    assert sum(held) == 10
    assert "visitor" in [m.name for m in fetch(cluster.address, roles["reader"], 5.0).members]
    with pytest.raises(Forbidden, match="'reader' may not call Register"):
        cluster.connect("spy", security=roles["reader"])


@pytest.mark.parametrize(
    ("token", "role"),
    [
        ("client", "trainer"),
        ("client", "parameter-server"),
        ("trainer", "parameter-server"),
        ("worker", "trainer"),
        ("parameter-server", "trainer"),
    ],
)
def test_registering_with_another_role_is_refused(cluster, roles, token, role):
    with pytest.raises(Forbidden, match=f"'{token}' may not be a {role}"):
        cluster.connect("ps-9", role=role, address="127.0.0.1:1", security=roles[token])

    members = {lease.member.name for lease in cluster.coordinator.machine.members.leases()}
    assert members == {"ps-0", "ps-1"}


def test_calls_for_a_member_of_another_role_are_refused(cluster, roles):
    client = cluster.connect("visitor", security=roles["client"])
    server = cluster.servers[0]

    with pytest.raises(Forbidden, match="speak for one"):
        client.connection.coordinator.leave(
            "ps-0", server.incarnation, client.connection.deadline()
        )
    with pytest.raises(Forbidden, match="speak for one"):
        client.connection.coordinator.renew_lease(
            "ps-0", server.incarnation, client.connection.deadline()
        )
    with pytest.raises(Forbidden, match="may not call RequestCheckpoint"):
        client.connection.coordinator.request_checkpoint(client.connection.deadline())

    assert cluster.coordinator.machine.members.has("ps-0")

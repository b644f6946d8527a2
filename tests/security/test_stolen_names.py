"""A name, an incarnation and a context belong to the process that has them."""

import time

import numpy as np
import pytest

from gradmesh.engine import optim
from gradmesh.protos.common.v1 import context_pb2, worker_pb2
from gradmesh.protos.coordinator.v1 import membership_pb2, ticket_pb2
from gradmesh.protos.errors import Forbidden, InvalidRequest, MeshError, NameTaken
from gradmesh.protos.frame import Frame
from gradmesh.protos.owner.v1 import owner_pb2
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2 as pb
from gradmesh.protos.ticket import SESSION_BYTES, TICKET_METADATA
from gradmesh.protos.version import PROTOCOL
from gradmesh.services.coordinator.journal import Journal, NameRecord, Tombstone
from tests.security.roles import bearer, call_raw, role_files

HUGE = 2**64 - 1
ROLE = {
    "client": membership_pb2.ROLE_CLIENT,
    "worker": membership_pb2.ROLE_WORKER,
    "trainer": membership_pb2.ROLE_TRAINER,
    "parameter-server": membership_pb2.ROLE_PARAMETER_SERVER,
}


@pytest.fixture
def roles(tmp_path):
    return role_files(tmp_path)


@pytest.fixture
def cluster(make_cluster, roles):
    return make_cluster(parameter_servers=1, security=roles["parameter-server"])


def take_name(cluster, name, incarnation, *, role="client", token="client"):
    """Register under a name, with replacement of its holder."""
    member = membership_pb2.Member(
        name=name, role=ROLE[role], address="127.0.0.1:1", incarnation=incarnation
    )
    request = membership_pb2.RegisterRequest(
        member=member, protocol=PROTOCOL, replace=True, session=b"s" * SESSION_BYTES
    )
    call_raw(cluster.address, "Register", request, bearer(token) if token else ())


def ticket_of(mesh):
    issued = mesh.connection.coordinator.issue_tickets(["ps-0"], mesh.connection.deadline())
    return ((TICKET_METADATA, issued[0][0]),)


@pytest.mark.parametrize("token", ["client", "trainer", "worker", "admin"])
def test_no_client_takes_the_name_of_a_server(cluster, roles, token):
    for incarnation in (HUGE, time.time_ns() + 10**9):
        with pytest.raises((Forbidden, NameTaken, InvalidRequest)):
            take_name(cluster, "ps-0", incarnation, token=token)

    cluster.servers[0].mesh.connection.renew(cluster.servers[0].mesh.connection.deadline())
    cluster.restart_server(0)
    assert cluster.coordinator.machine.members.has("ps-0")


@pytest.mark.parametrize("role", ["client", "parameter-server"])
@pytest.mark.parametrize("is_secure", [True, False])
def test_no_incarnation_is_from_the_future(make_cluster, roles, role, is_secure):
    security = roles["parameter-server"] if is_secure else None
    cluster = make_cluster(parameter_servers=1, security=security)

    for incarnation in (HUGE, time.time_ns() + 600 * 10**9):
        with pytest.raises(InvalidRequest, match="ahead of the coordinator's clock"):
            take_name(cluster, "x-0", incarnation, role=role, token="admin" if is_secure else None)

    take_name(cluster, "x-0", 7, role=role, token="admin" if is_secure else None)


def test_a_client_cannot_take_the_name_that_a_server_left(cluster, roles):
    cluster.servers[0].close()
    cluster.servers.clear()

    with pytest.raises(Forbidden, match="'client' may not be a parameter-server"):
        take_name(cluster, "ps-0", time.time_ns())

    cluster.add_server("ps-0")
    assert cluster.coordinator.machine.members.has("ps-0")


def test_a_client_that_holds_the_name_of_a_server_yields_to_it(cluster, roles):
    cluster.connect("ps-1", security=roles["client"])

    cluster.add_server("ps-1", replace=True)

    held = cluster.coordinator.machine.members.find("ps-1")
    assert held.member.role == membership_pb2.ROLE_PARAMETER_SERVER


def test_a_journal_with_an_incarnation_of_the_future_locks_no_name_out(
    make_cluster, roles, tmp_path
):
    journal = Journal(tmp_path / "state")
    journal.set_member("ps-0", NameRecord(None, b"", Tombstone(HUGE)))
    poisoned = membership_pb2.Member(name="ps-1", role=membership_pb2.ROLE_CLIENT, incarnation=HUGE)
    journal.set_member("ps-1", NameRecord(poisoned))
    journal.close()

    cluster = make_cluster(
        security=roles["parameter-server"], state_dir=tmp_path / "state", start_servers=False
    )
    for name in ("ps-0", "ps-1"):
        cluster.add_server(name, replace=True)

    members = cluster.coordinator.machine.members
    members.check_invariants()
    assert [m.name for m in members.of_role(ROLE["parameter-server"])] == ["ps-0", "ps-1"]
    assert not members.is_gone("ps-0", cluster.servers[0].incarnation)
    assert not members.is_gone("ps-1", cluster.servers[1].incarnation)


@pytest.fixture
def victim(cluster, roles):
    """A trainer with a table, and what to send in its name."""
    return cluster.connect("trainer-0", role="trainer", security=roles["trainer"])


@pytest.fixture
def table(victim):
    table = victim.table("user", rows=10, dim=2, optimizer=optim.SGD(lr=1.0))
    table.lookup(np.arange(10))
    return table


def forged(rpc, incarnation, epoch):
    """Return a request in the name of the victim."""
    context = context_pb2.ContextId(worker="trainer-0", incarnation=incarnation, counter=1)
    owner = worker_pb2.WorkerId(name="trainer-0", incarnation=incarnation)
    return {
        "ReleaseContext": owner_pb2.ReleaseContextRequest(context=context),
        "Push": Frame(
            pb.PushRequest(
                worker="trainer-0", incarnation=incarnation, sequence=9, shard_epoch=epoch
            ),
            [],
        ),
        "Lookup": Frame(
            pb.LookupRequest(context=context, lookup=1, shard_epoch=epoch, tables=["user"]),
            [np.arange(3)],
        ),
        "Backward": Frame(pb.BackwardRequest(context=context, lookup=1), []),
        "Apply": pb.ApplyRequest(context=context),
        "Refresh": pb.RefreshRequest(ahead_context=context, ahead_lookup=1, shard_epoch=epoch),
        "BeginSnapshot": pb.BeginSnapshotRequest(snapshot="s", tables=["user"], owner=owner),
    }[rpc]


RPCS = ["ReleaseContext", "Push", "Lookup", "Backward", "Apply", "Refresh", "BeginSnapshot"]


@pytest.mark.parametrize("rpc", RPCS)
@pytest.mark.parametrize("thief", ["client", "worker", "no member"])
def test_what_one_worker_sends_in_the_name_of_another_changes_nothing(
    cluster, roles, victim, table, rpc, thief
):
    if thief == "no member":
        request = ticket_pb2.IssueTicketsRequest(audiences=["ps-0"])
        issued = call_raw(cluster.address, "IssueTickets", request, bearer("admin")).tickets
        ticket = ((TICKET_METADATA, issued[0].data),)
    else:
        address = {"address": "127.0.0.1:1"} if thief == "worker" else {}
        mesh = cluster.connect("thief", role=thief, security=roles[thief], **address)
        ticket = ticket_of(mesh)
    epoch = victim.connection.servers.shard_map(victim.connection.deadline()).epoch
    before = table.lookup([3])

    with pytest.raises(Forbidden):
        call_raw(cluster.servers[0].server.address, rpc, forged(rpc, HUGE, epoch), ticket)

    # The victim's pushes and contexts still count.
    table.push([3], np.ones((1, 2), np.float32))
    context = victim.connection.new_context_id()
    lookup = Frame(
        pb.LookupRequest(context=context, lookup=1, shard_epoch=epoch, tables=["user"]),
        [np.array([3])],
    )
    servers = victim.connection.servers
    shards = servers.shard_map(victim.connection.deadline())
    servers.call_each(shards, "Lookup", {0: lookup}, victim.connection.deadline())
    assert (table.lookup([3]) == before - 1).all()
    assert cluster.stores[0].contexts.is_open(context)


@pytest.mark.parametrize("rpc", ["ReleaseContext", "Lookup"])
def test_a_client_may_not_work_in_the_context_of_a_live_trainer(cluster, roles, victim, table, rpc):
    client = cluster.connect("thief", security=roles["client"])
    epoch = victim.connection.servers.shard_map(victim.connection.deadline()).epoch
    request = forged(rpc, victim.connection.incarnation, epoch)

    with pytest.raises(Forbidden, match="may not act for 'trainer-0'"):
        call_raw(cluster.servers[0].server.address, rpc, request, ticket_of(client))


@pytest.mark.parametrize("ends", [False, True])
def test_a_worker_works_in_the_context_of_a_registered_trainer(cluster, roles, victim, table, ends):
    worker = cluster.connect(
        "worker-0", role="worker", security=roles["worker"], address="127.0.0.1:1"
    )
    epoch = victim.connection.servers.shard_map(victim.connection.deadline()).epoch
    address = cluster.servers[0].server.address
    incarnation = victim.connection.incarnation
    if ends:
        victim.close()  # its contexts are still to be released

    call_raw(address, "Lookup", forged("Lookup", incarnation, epoch), ticket_of(worker))
    released = call_raw(
        address, "ReleaseContext", forged("ReleaseContext", incarnation, epoch), ticket_of(worker)
    )

    assert released.found
    assert not cluster.stores[0].contexts.open_count()


def test_a_worker_that_cannot_be_checked_is_not_trusted(cluster, roles, victim, table):
    worker = cluster.connect(
        "worker-0", role="worker", security=roles["worker"], address="127.0.0.1:1"
    )
    ticket = ticket_of(worker)
    epoch = victim.connection.servers.shard_map(victim.connection.deadline()).epoch
    request = forged("Lookup", victim.connection.incarnation, epoch)
    cluster.stop_coordinator()

    with pytest.raises(MeshError, match="waits for the coordinator"):
        call_raw(cluster.servers[0].server.address, "Lookup", request, ticket)

    assert not cluster.stores[0].contexts.open_count()
    cluster.start_coordinator()

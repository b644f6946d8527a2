"""Stolen, forged and old tickets open nothing; a long-lived token opens no member."""

import time

import numpy as np
import pytest

import gradmesh as gm
from gradmesh.engine import optim
from gradmesh.protos.coordinator.v1 import ticket_pb2
from gradmesh.protos.errors import Forbidden, NotMember, TicketRejected
from gradmesh.protos.frame import Frame
from gradmesh.protos.owner.v1 import owner_pb2
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2 as pb
from gradmesh.protos.ticket import SESSION_METADATA, TICKET_METADATA, Ticket
from gradmesh.sdk.process.setting import ConfigError
from gradmesh.sdk.serving import TableReader
from gradmesh.sdk.transport.call import Caller
from gradmesh.sdk.transport.deadline import Deadline
from tests.security.roles import METHODS, bearer, call_raw, role_files, showing

SOON_S = 10.0


@pytest.fixture
def roles(tmp_path):
    return role_files(tmp_path)


@pytest.fixture
def cluster(make_cluster, roles):
    return make_cluster(parameter_servers=2, security=roles["parameter-server"])


@pytest.fixture
def table(cluster, roles):
    client = cluster.connect("visitor", security=roles["client"])
    table = client.table("user", rows=10, dim=2, optimizer=optim.SGD(lr=1.0))
    table.lookup(np.arange(10))
    return table


def tickets_of(mesh, *names):
    """Return tickets of a member for others."""
    issued = mesh.connection.coordinator.issue_tickets(names, mesh.connection.deadline())
    return [((TICKET_METADATA, ticket),) for ticket, _ in issued]


def describe(server, metadata):
    return call_raw(server.server.address, "Describe", owner_pb2.DescribeRequest(), metadata)


@pytest.mark.parametrize("role", ["admin", "parameter-server", "trainer", "reader"])
def test_a_member_accepts_no_long_lived_token(cluster, role):
    with pytest.raises(TicketRejected, match="not with a token"):
        describe(cluster.servers[0], bearer(role))


def test_a_ticket_of_another_audience_opens_nothing(cluster, roles):
    client = cluster.connect("visitor", security=roles["client"])
    (stolen,) = tickets_of(client, "ps-0")

    assert describe(cluster.servers[0], stolen).name == "ps-0"
    with pytest.raises(TicketRejected, match="not signed for this process"):
        describe(cluster.servers[1], stolen)


@pytest.mark.parametrize("lane", ["shm", "tcp", "stream", "unary"])
def test_no_lane_opens_with_a_ticket_of_another_audience(cluster, roles, table, lane):
    client = cluster.connect("thief", security=roles["client"])
    (stolen,) = tickets_of(client, "ps-0")
    request = Frame(pb.LookupRequest(tables=["user"], shard_epoch=1), [np.arange(10)])

    with (
        showing(cluster.servers[1].server.address, stolen, lane=lane) as channel,
        pytest.raises(TicketRejected),
    ):
        channel.call(METHODS["Lookup"], request, Deadline.after(SOON_S))


def test_a_ticket_ends(cluster, roles):
    client = cluster.connect("visitor", security=roles["client"])
    (ticket,) = tickets_of(client, "ps-0")
    server = cluster.servers[0]
    assert describe(server, ticket).name == "ps-0"

    # The server's view of the coordinator's clock, 16 minutes later.
    server.mesh.connection.close()
    server.identity.clock.set(int(time.time() * 1000) + 16 * 60_000)

    with pytest.raises(TicketRejected, match="has expired"):
        describe(server, ticket)


def test_no_byte_of_a_ticket_can_be_changed(cluster, roles):
    client = cluster.connect("visitor", security=roles["client"])
    ((_, ticket),) = tickets_of(client, "ps-0")[0]
    server = cluster.servers[0]

    with showing(server.server.address) as channel:
        for at in range(0, len(ticket), 7):
            forged = ticket[:at] + bytes([ticket[at] ^ 1]) + ticket[at + 1 :]
            with pytest.raises(TicketRejected):
                describe(server, ((TICKET_METADATA, forged),))
        with pytest.raises(TicketRejected):
            channel.call(METHODS["Describe"], owner_pb2.DescribeRequest(), Deadline.after(SOON_S))


def test_a_member_cannot_make_tickets_for_others(cluster, roles):
    client = cluster.connect("visitor", security=roles["client"])
    server = cluster.servers[0]
    audience = ("ps-0", server.incarnation)
    claims = Ticket(audience, "admin", ("", 0), "", int(time.time() * 1000) + 60_000)
    forged = claims.sign(client.connection.identity.session)

    with pytest.raises(TicketRejected):
        describe(server, ((TICKET_METADATA, forged),))


def test_the_coordinator_accepts_no_ticket_and_issues_none_without_a_token(cluster, roles):
    client = cluster.connect("visitor", security=roles["client"])
    (ticket,) = tickets_of(client, "ps-0")
    request = ticket_pb2.IssueTicketsRequest(audiences=["ps-0"])

    for metadata in ((), ticket):
        with pytest.raises(PermissionError, match="requires a token"):
            call_raw(cluster.address, "IssueTickets", request, metadata)


def test_a_ticket_carries_the_rights_of_the_token_only(cluster, roles):
    request = ticket_pb2.IssueTicketsRequest(audiences=["ps-0", "nobody"])
    issued = call_raw(cluster.address, "IssueTickets", request, bearer("reader")).tickets
    reader = ((TICKET_METADATA, issued[0].data),)
    push = Frame(pb.PushRequest(worker="ps-0", incarnation=1, sequence=1), [])

    assert issued[1].data == b""
    with pytest.raises(Forbidden, match="'reader' may not call Push"):
        call_raw(cluster.servers[0].server.address, "Push", push, reader)


def test_calls_go_on_when_a_server_restarts_with_another_session(cluster, table):
    before = table.lookup(np.arange(10))

    cluster.restart_server(0)
    cluster.restart_server(1)

    assert (table.lookup(np.arange(10), timeout_s=20) == before).all()


def test_calls_go_on_while_the_coordinator_is_gone(make_cluster, roles, tmp_path):
    cluster = make_cluster(security=roles["parameter-server"], state_dir=tmp_path / "state")
    client = cluster.connect("visitor", security=roles["client"], lane="unary")
    table = client.table("user", rows=10, dim=2, optimizer=optim.SGD(lr=1.0))
    before = table.lookup(np.arange(10))

    cluster.stop_coordinator()
    during = table.lookup(np.arange(10), timeout_s=SOON_S)
    table.push([3], np.ones((1, 2), np.float32))
    cluster.start_coordinator()

    assert (during == before).all()
    assert (table.lookup([3]) == before[3] - 1).all()


def test_a_reader_that_is_not_a_member_reads_with_tickets(cluster, roles, table):
    with TableReader(cluster.address, security=roles["reader"]) as reader:
        rows = reader.lookup("user", np.arange(10))

    assert (rows == table.lookup(np.arange(10))).all()


def test_a_client_with_a_token_uses_an_open_cluster(make_cluster, roles):
    cluster = make_cluster(parameter_servers=1)
    client = cluster.connect("visitor", security=roles["client"])
    table = client.table("user", rows=10, dim=2, optimizer=optim.SGD(lr=1.0))

    assert table.lookup(np.arange(10)).shape == (10, 2)


@pytest.mark.parametrize("is_open", [True, False])
def test_members_and_the_coordinator_authenticate_together(make_cluster, roles, tmp_path, is_open):
    security = None if is_open else roles["parameter-server"]
    cluster = make_cluster(start_servers=False, security=security)
    if not is_open:
        # As by a certificate, so that the worker needs no token.
        cluster.coordinator.server._interceptor._check = _AdmitsAsWorker()

    with pytest.raises(ConfigError, match="authenticates callers"):
        gm.rpc.init(
            "worker-0",
            coordinator=cluster.address,
            security=roles["worker"] if is_open else None,
            install=False,
        )

    assert not cluster.coordinator.machine.members.has("worker-0")


class _AdmitsAsWorker:
    needs_certificate = False

    def admit(self, path, metadata, certificate):
        return Caller("worker", session=metadata.get(SESSION_METADATA, b""))


def test_a_call_waits_for_its_ticket_while_the_caller_registers_again(cluster, roles):
    client = cluster.connect("visitor", security=roles["client"], lane="unary")
    table = client.table("user", rows=10, dim=2, optimizer=optim.SGD(lr=1.0))
    before = table.lookup(np.arange(10))
    tickets = client.connection.tickets
    failures = [NotMember("register again")] * 3

    def issue(audiences, deadline):
        if failures:
            raise failures.pop()
        return client.connection.coordinator.issue_tickets(audiences, deadline)

    tickets.join(issue)
    for server in ("ps-0", "ps-1"):
        tickets.reject(server, tickets.ticket(server, SOON_S))

    assert (table.lookup(np.arange(10)) == before).all()
    assert not failures

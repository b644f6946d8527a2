"""Requests that name a member count only with the session of that very member."""

import stat

import numpy as np
import pytest

from gradmesh.engine import optim
from gradmesh.protos.coordinator.v1 import (
    data_pb2,
    membership_pb2,
    rendezvous_pb2,
    reshard_pb2,
    status_pb2,
)
from gradmesh.protos.errors import Forbidden, InvalidRequest, NameTaken
from gradmesh.protos.ticket import SESSION_BYTES, SESSION_METADATA
from gradmesh.protos.version import PROTOCOL
from tests.security.roles import bearer, call_raw, role_files


@pytest.fixture
def roles(tmp_path):
    return role_files(tmp_path)


@pytest.fixture
def cluster(make_cluster, roles, tmp_path):
    return make_cluster(
        parameter_servers=1, security=roles["parameter-server"], state_dir=tmp_path / "state"
    )


def requests_of(name, incarnation):
    """Return every request that names a member."""
    who = {"name": name, "incarnation": incarnation}
    return {
        "RenewLease": membership_pb2.RenewLeaseRequest(**who),
        "Leave": membership_pb2.LeaveRequest(**who),
        "JoinRound": rendezvous_pb2.JoinRoundRequest(**who),
        "TakeShard": data_pb2.TakeShardRequest(**who, dataset="d", samples=9, shard_samples=3),
        "ReportProgress": status_pb2.ReportProgressRequest(**who),
        "ReportCheckpoint": status_pb2.ReportCheckpointRequest(**who),
        "ReportMove": reshard_pb2.ReportMoveRequest(**who),
    }


def session_of(mesh):
    return ((SESSION_METADATA, mesh.connection.identity.session),)


@pytest.mark.parametrize("rpc", sorted(requests_of("", 0)))
@pytest.mark.parametrize("session", ["none", "another"])
def test_no_request_counts_for_another_member(cluster, roles, rpc, session):
    victim = cluster.connect("trainer-0", role="trainer", security=roles["trainer"])
    thief = cluster.connect("trainer-1", role="trainer", security=roles["trainer"])
    shown = session_of(thief) if session == "another" else ()
    request = requests_of("trainer-0", victim.connection.incarnation)[rpc]

    with pytest.raises(Forbidden, match="may not act for 'trainer-0'"):
        call_raw(cluster.address, rpc, request, (*bearer("admin"), *shown))

    machine = cluster.coordinator.machine
    assert machine.members.has("trainer-0")
    assert not machine.rendezvous.joined
    assert not machine.data_sets.workers()


@pytest.mark.parametrize("rpc", ["PutKey", "GetKey", "ReportResult"])
def test_only_trainers_of_a_generation_use_its_values_and_report_its_result(cluster, roles, rpc):
    trainer = cluster.connect("trainer-0", role="trainer", security=roles["trainer"])
    thief = cluster.connect("trainer-1", role="trainer", security=roles["trainer"])
    generation = trainer.connection.join_trainers(10).generation
    trainer.connection.store(generation).set("id", b"mine")
    request = {
        "PutKey": rendezvous_pb2.PutKeyRequest(generation=generation, key="x", value=b"y"),
        "GetKey": rendezvous_pb2.GetKeyRequest(generation=generation, key="id"),
        "ReportResult": status_pb2.ReportResultRequest(generation=generation, figures={"a": 1}),
    }[rpc]

    for shown in ((), session_of(thief)):
        with pytest.raises(Forbidden, match="not a trainer of this generation"):
            call_raw(cluster.address, rpc, request, (*bearer("trainer"), *shown))

    machine = cluster.coordinator.machine
    assert trainer.connection.store(generation).get("id", 5) == b"mine"
    assert not machine.reports.result
    call_raw(cluster.address, rpc, request, (*bearer("trainer"), *session_of(trainer)))


def test_a_name_and_incarnation_belong_to_one_session(cluster, roles):
    client = cluster.connect("visitor", security=roles["client"])
    member = membership_pb2.Member(
        name="visitor", role=membership_pb2.ROLE_CLIENT, incarnation=client.connection.incarnation
    )

    for replace in (False, True):
        stolen = membership_pb2.RegisterRequest(
            member=member, protocol=PROTOCOL, session=bytes(SESSION_BYTES), replace=replace
        )
        with pytest.raises(NameTaken):
            call_raw(cluster.address, "Register", stolen, bearer("client"))
    client.close()
    with pytest.raises(NameTaken):
        call_raw(cluster.address, "Register", stolen, bearer("client"))
    stolen.session = b""
    with pytest.raises(InvalidRequest, match="session key of 0 bytes"):
        call_raw(cluster.address, "Register", stolen, bearer("client"))


@pytest.mark.parametrize("with_state", [True, False])
def test_members_go_on_after_the_coordinator_restarts(make_cluster, roles, tmp_path, with_state):
    state_dir = tmp_path / "state" if with_state else None
    cluster = make_cluster(
        parameter_servers=1, security=roles["parameter-server"], state_dir=state_dir, lease_s=2.0
    )
    client = cluster.connect("visitor", security=roles["client"], lane="unary")
    table = client.table("user", rows=10, dim=2, optimizer=optim.SGD(lr=1.0))
    before = table.lookup(np.arange(10))

    cluster.stop_coordinator()
    cluster.start_coordinator()
    # Forget all tickets, as after an outage that outlives them.
    tickets = client.connection.tickets
    with tickets._lock:
        tickets._held.clear()
    spec = table.spec
    client.connection.renew(client.connection.deadline())
    if not with_state:
        client.connection.coordinator.create_table(spec, client.connection.deadline())
    table.push([3], np.ones((1, 2), np.float32))

    assert (table.lookup([3]) == before[3] - 1).all()
    members = cluster.coordinator.machine.members
    assert members.find("visitor").session == client.connection.identity.session


def test_only_the_owner_of_the_coordinator_reads_its_sessions(cluster, roles, tmp_path):
    client = cluster.connect("visitor", security=roles["client"])
    folder = tmp_path / "state"

    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = list(folder.iterdir())
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert any(client.connection.identity.session in file.read_bytes() for file in files)


def test_an_open_cluster_stores_no_sessions(make_cluster, tmp_path):
    cluster = make_cluster(parameter_servers=1, state_dir=tmp_path / "state")
    client = cluster.connect("visitor")

    stored = [file.read_bytes() for file in (tmp_path / "state").iterdir()]

    assert not any(client.connection.identity.session in data for data in stored)

"""The coordinator's rpcs, called directly: repeated calls count once, bad input changes nothing."""

import grpc
import pytest

from gradmesh.protos.coordinator.v1 import (
    membership_pb2,
    rendezvous_pb2,
    reshard_pb2,
    status_pb2,
    table_pb2,
    ticket_pb2,
)
from gradmesh.protos.errors import (
    DeadlineExceeded,
    InvalidFrame,
    InvalidRequest,
    KeyConflict,
    NotMember,
    StaleGeneration,
    TableConflict,
    TableNotFound,
)
from gradmesh.protos.version import PROTOCOL

TRAINER = membership_pb2.Member(
    name="trainer-0", role=membership_pb2.ROLE_TRAINER, address="h:1", incarnation=5
)
REGISTER = membership_pb2.RegisterRequest(member=TRAINER, protocol=PROTOCOL)
WHO = {"name": "trainer-0", "incarnation": 5}
SPEC = table_pb2.TableSpec(
    name="user",
    rows=10,
    dim=2,
    dtype="ELEMENT_TYPE_FLOAT32",
    initializer=table_pb2.Recipe(name="constant", settings={"value": 0.0}),
    optimizer=table_pb2.Recipe(name="sgd", settings={"lr": 0.1}),
)


@pytest.fixture
def call(make_cluster, raw):
    cluster = make_cluster(parameter_servers=1, trainers=1, lease_s=30.0)

    def call(rpc, request, timeout_s=20.0):
        return raw(cluster.address, rpc, request, timeout_s)

    call.machine = cluster.coordinator.machine
    return call


# In an order in which each precondition holds; the last one ends the membership.
REPEATABLE = [
    ("Register", REGISTER),
    ("RenewLease", membership_pb2.RenewLeaseRequest(**WHO)),
    ("JoinRound", rendezvous_pb2.JoinRoundRequest(**WHO)),
    ("PutKey", rendezvous_pb2.PutKeyRequest(generation=1, key="k", value=b"v")),
    ("GetKey", rendezvous_pb2.GetKeyRequest(generation=1, key="k")),
    ("DescribeTable", table_pb2.DescribeTableRequest(name="user")),
    ("ListTables", table_pb2.ListTablesRequest()),
    ("GetShardMap", table_pb2.GetShardMapRequest()),
    ("ReportProgress", status_pb2.ReportProgressRequest(**WHO)),
    ("ReportResult", status_pb2.ReportResultRequest(generation=1, figures={"auc": 0.5})),
    ("ScaleParameterServers", reshard_pb2.ScaleParameterServersRequest(parameter_servers=2)),
    ("GetReshard", reshard_pb2.GetReshardRequest()),
    ("ReportMove", reshard_pb2.ReportMoveRequest(**WHO)),
    ("IssueTickets", ticket_pb2.IssueTicketsRequest(audiences=["ps-0", "nobody"])),
    ("CheckWorkers", ticket_pb2.CheckWorkersRequest()),
    ("Leave", membership_pb2.LeaveRequest(**WHO)),
]


def test_every_repeated_rpc_takes_effect_once(call):
    created = [
        call("CreateTable", table_pb2.CreateTableRequest(spec=SPEC)).created for _ in range(2)
    ]

    for rpc, request in REPEATABLE:
        first, again = call(rpc, request), call(rpc, request)
        for answer in (first, again):
            if "time_ms" in answer.DESCRIPTOR.fields_by_name:
                answer.ClearField("time_ms")  # the clock goes on
        if rpc != "Leave":
            assert call.machine.rendezvous.current == 1, rpc
        assert first == again, rpc

    status = call("GetStatus", status_pb2.GetStatusRequest())
    assert created == [True, False]
    assert list(status.tables) == ["user"]
    assert [entry.member.name for entry in status.members] == ["ps-0"]
    assert call.machine.rendezvous.current == 2


@pytest.mark.parametrize(
    ("rpc", "request_", "error"),
    [
        ("RenewLease", membership_pb2.RenewLeaseRequest(name="nobody", incarnation=1), NotMember),
        (
            "RenewLease",
            membership_pb2.RenewLeaseRequest(name="trainer-0", incarnation=4),
            NotMember,
        ),
        ("JoinRound", rendezvous_pb2.JoinRoundRequest(name="nobody", incarnation=1), NotMember),
        ("JoinRound", rendezvous_pb2.JoinRoundRequest(name="trainer-0", incarnation=4), NotMember),
        ("PutKey", rendezvous_pb2.PutKeyRequest(generation=2, key="k"), StaleGeneration),
        ("PutKey", rendezvous_pb2.PutKeyRequest(generation=1, key=""), InvalidRequest),
        ("PutKey", rendezvous_pb2.PutKeyRequest(generation=1, key="k", value=b"w"), KeyConflict),
        (
            "PutKey",
            rendezvous_pb2.PutKeyRequest(generation=1, key="big", value=b"x" * 70_000),
            InvalidRequest,
        ),
        ("GetKey", rendezvous_pb2.GetKeyRequest(generation=0, key="k"), StaleGeneration),
        ("GetKey", rendezvous_pb2.GetKeyRequest(generation=1, key="x"), DeadlineExceeded),
        ("CreateTable", table_pb2.CreateTableRequest(), InvalidRequest),
        (
            "CreateTable",
            table_pb2.CreateTableRequest(
                spec=table_pb2.TableSpec(
                    name="user",
                    rows=11,
                    dim=2,
                    dtype=SPEC.dtype,
                    initializer=SPEC.initializer,
                    optimizer=SPEC.optimizer,
                )
            ),
            TableConflict,
        ),
        ("DescribeTable", table_pb2.DescribeTableRequest(name="x"), TableNotFound),
        ("ReportProgress", status_pb2.ReportProgressRequest(name="x"), NotMember),
        ("ReportResult", status_pb2.ReportResultRequest(generation=9), StaleGeneration),
        ("Register", membership_pb2.RegisterRequest(protocol=PROTOCOL), InvalidRequest),
        ("ScaleParameterServers", reshard_pb2.ScaleParameterServersRequest(), InvalidRequest),
        (
            "ScaleParameterServers",
            reshard_pb2.ScaleParameterServersRequest(parameter_servers=4097),
            InvalidRequest,
        ),
        ("ReportMove", reshard_pb2.ReportMoveRequest(name="nobody"), NotMember),
    ],
)
def test_bad_requests_are_refused_and_change_nothing(call, rpc, request_, error):
    call("CreateTable", table_pb2.CreateTableRequest(spec=SPEC))
    for earlier, known in REPEATABLE[:4]:
        call(earlier, known)
    before = call("GetStatus", status_pb2.GetStatusRequest())

    with pytest.raises(error) as caught:
        call(rpc, request_, timeout_s=2.0)

    after = call("GetStatus", status_pb2.GetStatusRequest())
    assert len(caught.value.message) > 20
    assert [m.member for m in after.members] == [m.member for m in before.members]
    assert (after.generation, after.tables, after.shard_epoch) == (1, ["user"], before.shard_epoch)
    assert after.result_generation == 0
    assert call("GetKey", REPEATABLE[4][1]).value == b"v"


def test_bytes_that_are_not_a_message_are_refused(make_cluster):
    cluster = make_cluster(parameter_servers=1)
    with grpc.insecure_channel(cluster.address) as channel:
        register = channel.unary_unary("/gradmesh.coordinator.v1.CoordinatorService/Register")
        with pytest.raises(grpc.RpcError) as caught:
            register(b"\xff" * 40, timeout=120)

    assert caught.value.code().name == InvalidFrame.code
    assert "not a gradmesh.coordinator.v1.RegisterRequest" in caught.value.details()

"""A client with grpc and the generated modules only; run by test_plain_client.

Usage: plain_client.py FOLDER COORDINATOR SERVER. FOLDER holds the generated modules. Prints the
paths of the rpcs it has called as JSON; any surprise is an AssertionError.
"""

import json
import struct
import sys

sys.path.insert(0, sys.argv[1])

import grpc

from gradmesh.protos.autograd.v1 import autograd_pb2, autograd_pb2_grpc
from gradmesh.protos.common.v1 import array_pb2, context_pb2, value_pb2, worker_pb2
from gradmesh.protos.coordinator.v1 import (
    coordinator_pb2_grpc,
    data_pb2,
    membership_pb2,
    rendezvous_pb2,
    reshard_pb2,
    status_pb2,
    table_pb2,
    ticket_pb2,
)
from gradmesh.protos.owner.v1 import owner_pb2, owner_pb2_grpc
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2 as ps_pb2
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2_grpc

CALLED = set()


class Caller:
    def __init__(self, service, stub):
        self._service, self._stub = service, stub

    def __call__(self, request):
        name = type(request).__name__.removesuffix("Request")
        CALLED.add(f"{self._service}/{name}")
        return getattr(self._stub, name)(request, timeout=120)

    def stream(self, name, *requests):
        CALLED.add(f"{self._service}/{name}")
        metadata = [("gradmesh-lane-version", "1")]
        return list(getattr(self._stub, name)(iter(requests), timeout=120, metadata=metadata))


def ids(*values):
    data = struct.pack(f"<{len(values)}q", *values)
    return array_pb2.Array(dtype=array_pb2.ELEMENT_TYPE_INT64, shape=[len(values)], data=data)


def rows(*values):
    data = struct.pack(f"<{len(values)}f", *values)
    shape = [len(values) // 2, 2]
    return array_pb2.Array(dtype=array_pb2.ELEMENT_TYPE_FLOAT32, shape=shape, data=data)


def numbers(array):
    assert array.dtype == array_pb2.ELEMENT_TYPE_FLOAT32
    return list(struct.unpack(f"<{len(array.data) // 4}f", array.data))


def member(ask):
    me = membership_pb2.Member(
        name="plain", role=membership_pb2.ROLE_TRAINER, address="127.0.0.1:1", incarnation=5
    )
    assert ask(membership_pb2.RegisterRequest(member=me, protocol="gradmesh.v1")).lease_s > 0
    assert ask(membership_pb2.RenewLeaseRequest(name="plain", incarnation=5)).lease_s > 0


def round_of_one(ask):
    place = ask(rendezvous_pb2.JoinRoundRequest(name="plain", incarnation=5))
    assert (place.rank, place.world_size) == (0, 1)
    here = {"generation": place.generation, "key": "k"}
    ask(rendezvous_pb2.PutKeyRequest(value=b"v", **here))
    assert ask(rendezvous_pb2.GetKeyRequest(**here)).value == b"v"
    return place.generation


def table(ask):
    spec = table_pb2.TableSpec(
        name="users",
        rows=100,
        dim=2,
        dtype=array_pb2.ELEMENT_TYPE_FLOAT32,
        initializer=table_pb2.Recipe(name="constant", settings={"value": 1.0}),
        optimizer=table_pb2.Recipe(name="sgd", settings={"lr": 0.5}),
    )
    assert ask(table_pb2.CreateTableRequest(spec=spec)).created
    assert ask(table_pb2.DescribeTableRequest(name="users")).spec == spec
    assert list(ask(table_pb2.ListTablesRequest()).specs) == [spec]
    shards = ask(table_pb2.GetShardMapRequest()).map
    assert len(shards.bucket_shards) == 4096
    return shards.epoch


def train(ask, generation, epoch):
    ask(ps_pb2.StartRunRequest(generation=generation, world_size=1, tables=["users"]))
    assert ask(ps_pb2.InspectRunRequest(generation=generation)).origin == generation
    context = context_pb2.ContextId(worker="plain", incarnation=5, counter=1)
    mark = context_pb2.StepMark(generation=generation, step=0, rank=0)
    asked = ps_pb2.LookupRequest(
        context=context,
        lookup=1,
        mark=mark,
        shard_epoch=epoch,
        tables=["users"],
        arrays=[ids(3, 1)],
    )
    answer = ask(asked)
    assert list(answer.arrays[0].shape) == [2, 2]
    assert numbers(answer.arrays[0]) == [1, 1, 1, 1]
    grads = [rows(2, 0, 0, 2)]
    ask(ps_pb2.BackwardRequest(context=context, lookup=1, arrays=grads))
    assert ask(ps_pb2.ApplyRequest(context=context, mark=mark)).applied_steps == 1
    assert ask(ps_pb2.CommitStepRequest(mark=mark)).applied_steps == 1
    ahead = context_pb2.ContextId(worker="plain", incarnation=5, counter=2)
    early = ps_pb2.LookupRequest(
        context=ahead,
        lookup=1,
        ahead=True,
        shard_epoch=epoch,
        tables=["users"],
        arrays=[ids(3, 1)],
    )
    assert numbers(ask(early).arrays[0]) == [0, 1, 1, 0]
    pushed = ps_pb2.PushRequest(
        worker="plain",
        incarnation=5,
        sequence=1,
        shard_epoch=epoch,
        tables=["users"],
        arrays=[ids(1), rows(-2, 0)],
    )
    assert ask(pushed).applied
    assert not ask(pushed).applied
    refresh = ps_pb2.RefreshRequest(ahead_context=ahead, ahead_lookup=1, shard_epoch=epoch)
    places, changed = ask(refresh).arrays
    assert list(places.shape) == [1]
    assert numbers(changed) == [2, 0]
    look = ps_pb2.LookupRequest(shard_epoch=epoch, tables=["users"], arrays=[ids(1, 2, 3)])
    assert numbers(ask(look).arrays[0]) == [2, 0, 1, 1, 0, 1]
    assert ask(ps_pb2.InspectTableRequest(table="users")).rows == 100
    return context


def copy_and_restore(ask, epoch):
    frozen = ask(ps_pb2.BeginSnapshotRequest(snapshot="copy", tables=["users"]))
    assert frozen.frozen
    ids_seen, cursor = b"", 0
    while True:
        page = ask(ps_pb2.ReadSnapshotRequest(snapshot="copy", table="users", cursor=cursor))
        named = dict(zip(page.names, page.arrays, strict=True))
        ids_seen += named["ids"].data if "ids" in named else b""
        cursor = page.next_cursor
        if cursor == 0:
            break
    ask(ps_pb2.EndSnapshotRequest(snapshot="copy"))
    assert len(ids_seen) // 8 in (3, 100)
    ask(ps_pb2.BeginRestoreRequest(restore="back", tables=["users"]))
    loaded = ps_pb2.LoadRowsRequest(
        restore="back",
        table="users",
        shard_epoch=epoch,
        names=["ids", "rows"],
        arrays=[ids(7), rows(5, 6)],
    )
    ask(loaded)
    ask(ps_pb2.EndRestoreRequest(restore="back", steps=[0]))
    look = ps_pb2.LookupRequest(shard_epoch=epoch, tables=["users"], arrays=[ids(7)])
    assert numbers(ask(look).arrays[0]) == [5, 6]


def own(ask, context):
    described = ask(owner_pb2.DescribeRequest())
    assert "double" in described.functions
    value = value_pb2.Value(array_index=0)
    answer = ask(owner_pb2.CallRequest(function="double", args=[value], arrays=[rows(1, 2)]))
    assert numbers(answer.arrays[answer.result.array_index]) == [2, 4]
    ref = value_pb2.RemoteRef(owner=described.name, creator="plain", incarnation=5, counter=1)
    number = value_pb2.Value(int_value=21)
    ask(owner_pb2.CreateRefRequest(ref=ref, function="double", args=[number]))
    assert ask(owner_pb2.FetchRefRequest(ref=ref)).value.int_value == 42
    assert ask(owner_pb2.DescribeRefRequest(ref=ref)).type == "int"
    child = value_pb2.RemoteRef()
    child.CopyFrom(ref)
    child.fork.worker.name, child.fork.counter = "plain", 2
    ask(owner_pb2.ForkRefRequest(ref=child, caller=worker_pb2.WorkerId(name="other")))
    ask(owner_pb2.DeleteRefRequest(ref=ref))
    assert ask(owner_pb2.FetchRefRequest(ref=child)).value.int_value == 42
    ask(owner_pb2.DeleteRefRequest(ref=child))
    ask(owner_pb2.AcceptForkRequest(fork=child.fork))
    assert not ask(owner_pb2.DeliverRequest(call_id=9)).wanted
    assert ask(owner_pb2.CheckCallsRequest(call_ids=[9])).unknown_ids == [9]
    ask(owner_pb2.ReleaseContextRequest(context=context))
    offer = ask(owner_pb2.OpenLaneRequest(kinds=[owner_pb2.LANE_KIND_TCP], version=1))
    assert offer.kind == owner_pb2.LANE_KIND_TCP
    assert len(offer.secret) == 32
    # The frame of an rpc that is none: header of 32 bytes, its number 77, the caller's number 5.
    frame = struct.pack("<HHIIIIIQ", 0x4D47, 77, 5, 1000, 0, 0, 0, 0)
    (answer,) = ask.stream("Exchange", owner_pb2.ExchangeRequest(data=frame))
    assert struct.unpack_from("<HHI", answer.data) == (0x4D47, 1, 5)
    assert b"INVALID_REQUEST" in answer.data


def report(ask, generation):
    progress = status_pb2.Progress(generation=generation, step=1, total_steps=1, loss=0.5)
    ask(status_pb2.ReportProgressRequest(name="plain", incarnation=5, progress=progress))
    ask(status_pb2.ReportResultRequest(generation=generation, figures={"auc": 0.75}))
    shard = data_pb2.TakeShardRequest(
        name="plain", incarnation=5, dataset="d", samples=9, shard_samples=4, sequence=1
    )
    assert ask(shard).end == 4
    position = ask(data_pb2.GetDataPositionRequest(dataset="d")).position
    ask(data_pb2.SetDataPositionRequest(dataset="d", position=position))
    wanted = ask(status_pb2.RequestCheckpointRequest()).request
    written = status_pb2.Checkpoint(path="here", request=wanted)
    ask(status_pb2.ReportCheckpointRequest(name="plain", incarnation=5, checkpoint=written))
    assert ask(ticket_pb2.IssueTicketsRequest(audiences=["ps-0"])).is_open
    plain = worker_pb2.WorkerId(name="plain", incarnation=5)
    assert list(ask(ticket_pb2.CheckWorkersRequest(workers=[plain])).registered) == [True]
    status = ask(status_pb2.GetStatusRequest())
    assert status.result["auc"] == 0.75
    assert list(status.tables) == ["users"]
    ask(membership_pb2.LeaveRequest(name="plain", incarnation=5))


def backward(ask):
    head = autograd_pb2.Pass(
        context=context_pb2.ContextId(worker="plain", incarnation=1, counter=99),
        initiator=worker_pb2.WorkerId(name="plain", incarnation=1),
        number=1,
        mode=autograd_pb2.PASS_MODE_SMART,
        remaining_ms=1000,
    )
    assert ask(autograd_pb2.ProbePassRequest(backward_pass=head)).incarnation
    assert not ask(autograd_pb2.AbortPassRequest(backward_pass=head)).waiting
    dense = autograd_pb2.Gradient(kind=autograd_pb2.GRADIENT_KIND_DENSE)
    late = [
        autograd_pb2.ReportPartsRequest(backward_pass=head),
        autograd_pb2.SendGradientsRequest(
            backward_pass=head, message=1, gradients=[dense], arrays=[rows(1, 2)]
        ),
    ]
    for request in late:
        failure = None
        try:
            ask(request)
        except grpc.RpcError as error:
            failure = error
        assert failure is not None
        assert failure.code() is grpc.StatusCode.FAILED_PRECONDITION
    gone = value_pb2.RemoteRef(owner="ps-0", creator="plain", incarnation=1, counter=99)
    failure = None
    try:
        ask(
            autograd_pb2.StepParametersRequest(
                optimizer=gone, number=1, phase=autograd_pb2.STEP_PHASE_LOOK
            )
        )
    except grpc.RpcError as error:
        failure = error
    assert failure is not None
    assert failure.code() is grpc.StatusCode.NOT_FOUND


def scale(ask, ask_server):
    count = len(ask(table_pb2.GetShardMapRequest()).map.shards)
    begun = ask(reshard_pb2.ScaleParameterServersRequest(parameter_servers=count)).reshard
    # As many as there are: nothing is to do.
    assert begun.phase == reshard_pb2.RESHARD_PHASE_DONE
    assert ask(reshard_pb2.GetReshardRequest()).reshard == begun
    report = reshard_pb2.ReportMoveRequest(name="plain", incarnation=5)
    assert ask(report).reshard == begun
    unheard_of = [
        ps_pb2.StageRowsRequest(reshard=9, table="users", names=["ids"], arrays=[ids(1)]),
        ps_pb2.StageMarksRequest(reshard=9, source="plain"),
    ]
    for request in unheard_of:
        failure = None
        try:
            ask_server(request)
        except grpc.RpcError as error:
            failure = error
        assert failure is not None
        assert failure.code() is grpc.StatusCode.UNAVAILABLE


def fail(ask):
    failure = None
    try:
        ask(ps_pb2.InspectTableRequest(table="nope"))
    except grpc.RpcError as error:
        failure = error
    assert failure is not None
    assert failure.code() is grpc.StatusCode.NOT_FOUND
    details = dict(failure.trailing_metadata())["grpc-status-details-bin"]
    assert b"TABLE_NOT_FOUND" in details


def main(coordinator_address, server_address):
    with (
        grpc.insecure_channel(coordinator_address) as to_coordinator,
        grpc.insecure_channel(server_address) as to_server,
    ):
        coordinator = Caller(
            "gradmesh.coordinator.v1.CoordinatorService",
            coordinator_pb2_grpc.CoordinatorServiceStub(to_coordinator),
        )
        server = Caller(
            "gradmesh.parameter_server.v1.ParameterServerService",
            parameter_server_pb2_grpc.ParameterServerServiceStub(to_server),
        )
        owner = Caller("gradmesh.owner.v1.OwnerService", owner_pb2_grpc.OwnerServiceStub(to_server))
        autograd = Caller(
            "gradmesh.autograd.v1.AutogradService",
            autograd_pb2_grpc.AutogradServiceStub(to_server),
        )
        backward(autograd)
        member(coordinator)
        generation = round_of_one(coordinator)
        epoch = table(coordinator)
        own(owner, train(server, generation, epoch))
        copy_and_restore(server, epoch)
        scale(coordinator, server)
        fail(server)
        report(coordinator, generation)
    assert "numpy" not in sys.modules
    print(json.dumps(sorted(CALLED)))


if __name__ == "__main__":
    main(*sys.argv[2:])

"""Attacks on what the coordinator keeps for its callers: each is refused, and others are served.

Limits are lowered where reaching them takes long. After each attack the counts are back.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import msgspec
import pytest

import gradmesh as gm
from gradmesh.protos import limits
from gradmesh.protos.coordinator.v1 import (
    data_pb2,
    membership_pb2,
    rendezvous_pb2,
    status_pb2,
    table_pb2,
)
from gradmesh.protos.errors import InvalidRequest, LimitExceeded, MeshError
from gradmesh.protos.version import PROTOCOL
from gradmesh.sdk.cluster.status import fetch
from gradmesh.sdk.process.network import SecurityConfig
from gradmesh.sdk.transport.boundary import from_call
from gradmesh.sdk.transport.deadline import Deadline
from tests.conftest import Cluster
from tests.security.plain_calls import METHODS, Ask, lowered, refused
from tests.security.plain_calls import ask as ask

SGD = gm.optim.SGD(lr=0.5)


@pytest.fixture
def attack(cluster: Cluster, ask: Callable[[str], Ask]) -> Ask:
    """Calls the coordinator as the member `attacker`."""
    call = ask(cluster.address)
    call("Register", registration("attacker"))
    return call


def registration(
    name: str, role: "membership_pb2.Role" = membership_pb2.ROLE_TRAINER, **fields: Any
) -> membership_pb2.RegisterRequest:
    member = membership_pb2.Member(
        name=name, role=role, address="127.0.0.1:1", incarnation=1, **fields
    )
    return membership_pb2.RegisterRequest(member=member, protocol=PROTOCOL)


def spec(name: str) -> table_pb2.TableSpec:
    return table_pb2.TableSpec(
        name=name,
        rows=100,
        dim=2,
        dtype="ELEMENT_TYPE_FLOAT32",
        initializer=table_pb2.Recipe(name="constant", settings={"value": 1.0}),
        optimizer=table_pb2.Recipe(name="sgd", settings={"lr": 0.5}),
    )


def create(ask: Ask, name: str) -> bool:
    return bool(ask("CreateTable", table_pb2.CreateTableRequest(spec=spec(name))).created)


def heartbeat(name: str = "attacker", **fields: Any) -> membership_pb2.RenewLeaseRequest:
    return membership_pb2.RenewLeaseRequest(name=name, incarnation=1, **fields)


def test_millions_of_openers_are_refused_while_other_members_renew(
    cluster: Cluster, attack: Ask
) -> None:
    attack("Register", registration("honest"))
    # An opener without a name takes two bytes, so 1.9 million fit below the limit of a message.
    huge = heartbeat().SerializeToString() + b"\x22\x00" * 1_900_000

    def send() -> MeshError:
        with grpc.insecure_channel(cluster.address) as channel:
            try:
                channel.unary_unary(METHODS["RenewLease"].path)(huge, timeout=120)
            except grpc.RpcError as error:
                return from_call(error, "RenewLease")
        raise AssertionError("not refused")

    with ThreadPoolExecutor(2) as pool:
        attacks = [pool.submit(send) for _ in range(4)]
        while not all(one.done() for one in attacks):
            assert attack("RenewLease", heartbeat("honest")).lease_s > 0
        errors = [one.result() for one in attacks]

    assert {type(error) for error in errors} == {LimitExceeded}
    assert "the limit is" in errors[0].message


def test_a_request_that_is_refused_does_not_wait_for_the_lock(cluster: Cluster) -> None:
    servicer = cluster.coordinator.servicer
    call: Any = None  # a refused request is not looked at further
    requests: dict[str, Any] = {
        "renew_lease": heartbeat(context_counts=range(2000)),
        "register": membership_pb2.RegisterRequest(protocol="p" * 2**16),
        "create_table": table_pb2.CreateTableRequest(spec=spec("no name!")),
        "set_data_position": data_pb2.SetDataPositionRequest(dataset="d", position=b"x" * 2**20),
        "take_shard": data_pb2.TakeShardRequest(dataset="d", done=range(2000)),
        "put_key": rendezvous_pb2.PutKeyRequest(key="k", value=bytes(2**20)),
        "report_result": status_pb2.ReportResultRequest(job="j" * 2**15),
    }
    refusals: dict[str, bool] = {}

    def send() -> None:
        for name, request in requests.items():
            with pytest.raises((InvalidRequest, LimitExceeded)):
                getattr(servicer, name)(request, call)
            refusals[name] = True

    with servicer._changed:
        thread = threading.Thread(target=send)
        thread.start()
        thread.join(20)

    assert refusals.keys() == requests.keys()


def test_addresses_and_members_are_bounded_and_roles_have_their_own_places(
    make_cluster: Callable[..., Cluster], ask: Callable[[str], Ask], monkeypatch: pytest.MonkeyPatch
) -> None:
    lowered(monkeypatch, "MEMBERS", 10)
    call = ask(make_cluster(parameter_servers=1, trainers=4).address)
    client = membership_pb2.ROLE_CLIENT
    request = registration("long")
    request.member.address = "h" * 10_000
    with pytest.raises(InvalidRequest, match="not an address"):
        call("Register", request)

    admitted = refused(lambda n: call("Register", registration(f"c-{n}", client)), 100)

    assert admitted == 10
    for number in range(4):
        call("Register", registration(f"trainer-{number}"))
    call("Leave", membership_pb2.LeaveRequest(name="c-0", incarnation=1))
    call("Register", registration("late", client))


def test_table_names_without_end_are_refused_and_those_that_exist_stay(
    cluster: Cluster, attack: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    lowered(monkeypatch, "TABLES", 30)
    cluster.coordinator.machine.catalogue._made._bound = limits.TABLES
    mesh = cluster.connect()
    mesh.table("mine", rows=10, dim=2, optimizer=SGD)

    made = refused(lambda number: create(attack, f"t-{number}"), 1000)

    assert made == 29
    assert len(cluster.coordinator.journal.tables()) == 30
    assert not create(attack, "t-0")
    assert mesh.table("mine", rows=10, dim=2, optimizer=SGD).lookup([1]).shape == (1, 2)


def test_a_specification_carries_no_ballast_into_the_journal(cluster: Cluster, attack: Ask) -> None:
    ballast = b"\x9a\x06\x80\x80\x40" + bytes(2**20)  # field 99, unknown here
    grown = table_pb2.TableSpec.FromString(spec("big").SerializeToString() + ballast)

    with pytest.raises(LimitExceeded, match="specification of"):
        attack("CreateTable", table_pb2.CreateTableRequest(spec=grown))

    assert cluster.coordinator.journal.tables() == []


def test_published_bytes_end_at_a_limit_and_are_back_with_the_next_generation(
    cluster: Cluster, attack: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendezvous = cluster.coordinator.machine.rendezvous
    monkeypatch.setattr(
        rendezvous._key_bytes, "_bound", limits.KEY_BYTES._replace(total=2**20, per_caller=2**20)
    )
    attack("JoinRound", rendezvous_pb2.JoinRoundRequest(name="attacker", incarnation=1))
    value = bytes(limits.MAX_VALUE_BYTES)

    def put(number: int, generation: int = 1) -> None:
        request = rendezvous_pb2.PutKeyRequest(
            generation=generation, key=f"k-{number}", value=value
        )
        attack("PutKey", request)

    assert refused(put, 1000) == 15
    assert rendezvous._key_bytes.total <= 2**20
    got = attack("GetKey", rendezvous_pb2.GetKeyRequest(generation=1, key="k-0"))
    assert len(got.value) == limits.MAX_VALUE_BYTES
    again = rendezvous_pb2.JoinRoundRequest(name="attacker", incarnation=1, after_generation=1)
    generation = attack("JoinRound", again).generation
    assert rendezvous._key_bytes.total == 0
    put(0, generation)


def test_a_position_of_a_client_brings_no_workers_and_no_endless_epoch(
    cluster: Cluster, attack: Ask
) -> None:
    held = dict.fromkeys(range(4), ("nobody", 1))
    answers = {f"w-{number}": (1, 1, None) for number in range(1000)}
    position = {"cut": (4, 1, 1), "epoch": 0, "done": b"\0", "held": held, "answers": answers}

    attack(
        "SetDataPosition",
        data_pb2.SetDataPositionRequest(dataset="d", position=msgspec.msgpack.encode(position)),
    )

    kept = cluster.coordinator.machine.data_sets._sets["d"]
    assert (kept.held, kept.answers) == ({}, {})
    take = data_pb2.TakeShardRequest(
        name="attacker",
        incarnation=1,
        dataset="d",
        samples=4,
        shard_samples=1,
        epochs=1,
        sequence=1,
    )
    assert attack("TakeShard", take).end == 1
    endless = msgspec.msgpack.encode({**position, "epoch": 2**64 - 1})
    with pytest.raises(InvalidRequest, match="its epoch"):
        attack("SetDataPosition", data_pb2.SetDataPositionRequest(dataset="d", position=endless))


def test_data_sets_without_end_are_refused(
    cluster: Cluster, attack: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    data_sets = cluster.coordinator.machine.data_sets
    monkeypatch.setattr(data_sets._count, "_bound", limits.DATA_SETS._replace(total=20))
    monkeypatch.setattr(data_sets._shards, "_bound", limits.DATA_SHARDS._replace(total=2**21))

    def take(name: str, samples: int = 10) -> Any:
        request = data_pb2.TakeShardRequest(
            name="attacker",
            incarnation=1,
            dataset=name,
            samples=samples,
            shard_samples=1,
            sequence=1,
        )
        return attack("TakeShard", request)

    assert refused(lambda number: take(f"big-{number}", 2**20), 100) == 2
    assert refused(lambda number: take(f"d-{number}"), 100) == 0
    assert len(cluster.coordinator.journal.data_sets()) == 2
    assert take("big-0", 2**20).end == 1


def test_no_report_stops_the_heartbeats_of_the_others(cluster: Cluster, attack: Ask) -> None:
    endless = status_pb2.Checkpoint(request=2**64 - 1)
    report = status_pb2.ReportCheckpointRequest(name="attacker", incarnation=1, checkpoint=endless)
    with pytest.raises(InvalidRequest, match="never made"):
        attack("ReportCheckpoint", report)
    report.checkpoint.request = 2**62
    attack("ReportCheckpoint", report)
    attack("JoinRound", rendezvous_pb2.JoinRoundRequest(name="attacker", incarnation=1))
    attack("RequestCheckpoint", status_pb2.RequestCheckpointRequest())

    assert attack("RenewLease", heartbeat()).checkpoint_request == 2**62 + 1
    for field, request in {
        "error": status_pb2.Checkpoint(error="e" * 2**20),
        "path": status_pb2.Checkpoint(path="p" * 2**20),
    }.items():
        report.checkpoint.CopyFrom(request)
        with pytest.raises(LimitExceeded):
            attack("ReportCheckpoint", report)
        assert not getattr(attack("GetStatus", status_pb2.GetStatusRequest()).checkpoint, field)


def test_lists_arrive_in_pages_and_clients_read_all_of_them(
    cluster: Cluster, attack: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_PAGE", 3)
    for number in range(8):
        attack("Register", registration(f"m-{number}", membership_pb2.ROLE_CLIENT))
        create(attack, f"t-{number}")
    mesh = cluster.connect("zz")

    page = attack("GetStatus", status_pb2.GetStatusRequest(page_size=10**6))
    tables = attack("ListTables", table_pb2.ListTablesRequest(page_size=2))
    names = [
        m.member.name for m in mesh.connection.coordinator.get_status(Deadline.after(20)).members
    ]

    assert [m.member.name for m in page.members] == ["attacker", "m-0", "m-1"]
    assert page.next_page_token == "m-1"
    assert [table.name for table in tables.specs] == ["t-0", "t-1"]
    assert names == ["attacker", *(f"m-{n}" for n in range(8)), "ps-0", "ps-1", "zz"]
    assert [t.name for t in mesh.connection.coordinator.list_tables(Deadline.after(20))] == [
        f"t-{n}" for n in range(8)
    ]
    assert len(fetch(cluster.address, SecurityConfig(), 20.0).members) == 12

"""Attacks on what a cluster keeps for its callers: each is refused, and others are served.

Limits are lowered where reaching them takes long. After each attack the counts are back.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import grpc
import msgspec
import numpy as np
import pytest

import gradmesh as gm
from gradmesh.protos import limits
from gradmesh.protos.common.v1 import context_pb2, value_pb2, worker_pb2
from gradmesh.protos.coordinator.v1 import (
    coordinator_pb2,
    data_pb2,
    membership_pb2,
    rendezvous_pb2,
    status_pb2,
    table_pb2,
)
from gradmesh.protos.errors import InvalidRequest, LimitExceeded, MeshError
from gradmesh.protos.frame import Frame
from gradmesh.protos.method import methods_of
from gradmesh.protos.owner.v1 import owner_pb2
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2 as ps_pb2
from gradmesh.protos.version import PROTOCOL
from gradmesh.sdk.cluster.status import fetch
from gradmesh.sdk.node.node import Node
from gradmesh.sdk.node.start import init
from gradmesh.sdk.process.network import SecurityConfig
from gradmesh.sdk.rpc.builtin import GATHER
from gradmesh.sdk.rpc.registry import REGISTRY
from gradmesh.sdk.rpc.rref import owners
from gradmesh.sdk.rpc.values import ValueEncoder
from gradmesh.sdk.transport.boundary import from_call
from gradmesh.sdk.transport.call import Caller
from gradmesh.sdk.transport.channel import Channel
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.sdk.transport.lane.handshake import LaneSecrets
from gradmesh.services.parameter_server import contexts
from tests.conftest import Cluster, wait_until

METHODS = {
    name: method
    for file in (coordinator_pb2, owner_pb2, ps_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for name, method in methods_of(service).items()
}
Ask = Callable[[str, Any], Any]

SGD = gm.optim.SGD(lr=0.5)


@pytest.fixture
def ask() -> Iterator[Callable[[str], Ask]]:
    """Connect a plain client to an address; it calls rpcs by name."""
    with ExitStack() as stack:

        def connect(address: str) -> Ask:
            channel = stack.enter_context(Channel(address, "target", lane="unary"))
            return lambda name, request: channel.call(METHODS[name], request, Deadline.after(20))

        yield connect


@pytest.fixture
def attack(cluster: Cluster, ask: Callable[[str], Ask]) -> Ask:
    """Calls the coordinator as the member `attacker`."""
    call = ask(cluster.address)
    call("Register", registration("attacker"))
    return call


@pytest.fixture
def worker(cluster: Cluster) -> Iterator[Node]:
    """A worker that serves functions."""
    node = init("worker-0", coordinator=cluster.address, install=False)
    yield node
    node.leave(1.0)


def registration(
    name: str, role: "membership_pb2.Role" = membership_pb2.ROLE_TRAINER, **fields: Any
) -> membership_pb2.RegisterRequest:
    member = membership_pb2.Member(
        name=name, role=role, address="127.0.0.1:1", incarnation=1, **fields
    )
    return membership_pb2.RegisterRequest(member=member, protocol=PROTOCOL)


def lowered(
    monkeypatch: pytest.MonkeyPatch, name: str, total: int, per_caller: int | None = None
) -> None:
    bound = getattr(limits, name)
    most = min(bound.per_caller, total) if per_caller is None else per_caller
    monkeypatch.setattr(limits, name, bound._replace(total=total, per_caller=most))


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


def refused(call: Callable[[int], object], most: int) -> int:
    """Repeat a call until it is refused; return how often it was not."""
    for number in range(most):
        try:
            call(number)
        except LimitExceeded:
            return number
    raise AssertionError(f"not refused {most} times")


def test_millions_of_openers_are_refused_while_other_members_renew(
    cluster: Cluster, attack: Ask
) -> None:
    attack("Register", registration("honest"))
    # An opener without a name takes two bytes, so 1.9 million fit below the limit of a message.
    huge = heartbeat().SerializeToString() + b"\x22\x00" * 1_900_000

    def send() -> MeshError:
        with grpc.insecure_channel(cluster.address) as channel:
            try:
                channel.unary_unary(METHODS["RenewLease"].path)(huge, timeout=60)
            except grpc.RpcError as error:
                return from_call(error, "RenewLease")
        raise AssertionError("not refused")

    with ThreadPoolExecutor(2) as pool:
        attacks = [pool.submit(send) for _ in range(4)]
        while not all(one.done() for one in attacks):
            assert attack("RenewLease", heartbeat("honest")).lease_s > 0
        errors = [one.result() for one in attacks]

    assert {type(error) for error in errors} == {LimitExceeded}
    assert "the limit is 1024" in errors[0].message


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
    with pytest.raises(LimitExceeded, match="address"):
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


def call_request(function: str, call_id: int, *args: object, **fields: Any) -> Frame[Any]:
    encoder = ValueEncoder()
    values = [encoder.add(arg) for arg in args]
    caller = worker_pb2.WorkerId(name="attacker", incarnation=1)
    message = owner_pb2.CallRequest(
        function=function, args=values, caller=caller, call_id=call_id, **fields
    )
    return Frame(message, encoder.arrays)


def test_gathers_at_once_take_no_threads_and_are_bounded(
    worker: Node, ask: Callable[[str], Ask], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert worker.server is not None
    call = ask(worker.server.address)
    gathers = worker.agent.collectives
    monkeypatch.setattr(
        gathers._opened, "_bound", limits.GATHERS._replace(total=150, per_caller=100)
    )
    before = threading.active_count()

    def gather(number: int, who: str = "attacker", timeout_s: float = 3600.0) -> Any:
        args = (["a-absent", who], number, who, np.zeros(10), timeout_s)
        return call("Call", call_request(GATHER, number + 1, *args)).message

    replies = [gather(number) for number in range(200)]

    assert [reply.deferred for reply in replies] == [True] * 100 + [False] * 100
    assert {reply.error.type for reply in replies[100:]} == {"LIMIT_EXCEEDED"}
    assert gather(900, "another").deferred
    assert gathers.waiting() == 101
    assert threading.active_count() - before < 40  # one for each was 200
    arrive = (["a-absent", "attacker"], 0, "a-absent", None, 10.0)
    assert not call("Call", call_request(GATHER, 500, *arrive)).message.error.type
    assert gathers.waiting() == 100
    gathers.close()
    assert (gathers.waiting(), gathers._opened.total, gathers._bytes.total) == (0, 0, 0)


def test_late_gathers_end_and_free_their_places(worker: Node, ask: Callable[[str], Ask]) -> None:
    assert worker.server is not None
    call = ask(worker.server.address)
    for number in range(50):
        args = (["a-absent", "attacker"], number, "attacker", bytes(1000), 0.05)
        call("Call", call_request(GATHER, number + 1, *args))

    wait_until(lambda: not worker.agent.collectives.waiting())

    assert worker.agent.collectives._bytes.total == 0
    for wrong in (0.0, -1.0, float("nan")):
        args = (["a-absent", "attacker"], 1, "attacker", None, wrong)
        assert call("Call", call_request(GATHER, 99, *args)).message.error.type == "INVALID_REQUEST"


def test_replies_owed_to_one_caller_are_bounded_before_its_functions_run(
    worker: Node, ask: Callable[[str], Ask], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert worker.server is not None
    call = ask(worker.server.address)
    deferred = worker.agent.deferred
    monkeypatch.setattr(deferred._calls, "_bound", limits.DEFERRED._replace(per_caller=20))

    def gather(number: int) -> None:
        args = (["a-absent", "attacker"], number, "attacker", None, 3600.0)
        call("Call", call_request(GATHER, number + 1, *args))

    assert refused(gather, 100) == 20
    assert worker.agent.collectives.waiting() == 20
    worker.agent.collectives.close()
    wait_until(lambda: not len(deferred))
    assert (deferred._calls.total, deferred._bytes.total) == (0, 0)


def make_list() -> list[int]:
    return [1]


def test_references_of_callers_that_never_were_members_are_bounded_and_expire(
    worker: Node, ask: Callable[[str], Ask], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert worker.server is not None
    call = ask(worker.server.address)
    REGISTRY.register("tests.security.make_list", make_list)
    kept = worker.agent.rrefs.owners
    monkeypatch.setattr(kept._held, "_bound", limits.REFERENCES._replace(total=40, per_caller=25))
    monkeypatch.setattr(kept._expected, "_bound", limits.AWAITED._replace(per_caller=10))

    def ref(number: int, creator: str) -> value_pb2.RemoteRef:
        holder = worker_pb2.WorkerId(name=creator, incarnation=1)
        fork = value_pb2.ForkId(worker=holder, counter=number + 1)
        return value_pb2.RemoteRef(
            owner="worker-0", creator=creator, incarnation=1, counter=number + 1, fork=fork
        )

    def make(number: int, creator: str = "stranger") -> None:
        request = owner_pb2.CreateRefRequest(
            ref=ref(number, creator), function="tests.security.make_list"
        )
        call("CreateRef", Frame(request))

    def fork(number: int) -> None:
        holder = worker_pb2.WorkerId(name="stranger", incarnation=1)
        call("ForkRef", owner_pb2.ForkRefRequest(ref=ref(number, "creator"), caller=holder))

    assert refused(make, 100) == 25
    assert refused(lambda number: make(number, "other"), 100) == 15
    with pytest.raises(LimitExceeded, match="name of a"):
        make(1, "x" * 2**20)
    assert len(kept) == 40
    monkeypatch.setattr(kept._held, "_bound", limits.REFERENCES)
    assert refused(fork, 100) == 10

    monkeypatch.setattr(owners, "_AWAITED_S", 0.0)
    wait_until(lambda: not len(kept) and not kept._expected.total)
    assert kept._held.total == 0
    make(200)


def test_contexts_without_end_are_refused_and_other_workers_look_rows_up(
    make_cluster: Callable[..., Cluster], ask: Callable[[str], Ask], monkeypatch: pytest.MonkeyPatch
) -> None:
    lowered(monkeypatch, "CONTEXTS", 40, 30)
    lowered(monkeypatch, "LOOKUPS", 20)
    cluster = make_cluster(parameter_servers=1)
    table = cluster.connect().table("t", rows=100, dim=2, optimizer=SGD)
    call, store = ask(cluster.servers[0].server.address), cluster.stores[0]

    def look_up(counter: int, number: int = 1, worker: str = "attacker") -> None:
        context = context_pb2.ContextId(worker=worker, incarnation=1, counter=counter + 1)
        message = ps_pb2.LookupRequest(context=context, lookup=number, shard_epoch=1, tables=["t"])
        call("Lookup", Frame(message, [np.arange(3)]))

    assert refused(look_up, 100) == 30
    assert refused(lambda number: look_up(0, number + 2), 100) == 19
    assert refused(lambda counter: look_up(counter, worker="another"), 100) == 10
    with pytest.raises(LimitExceeded, match="name of a worker"):
        look_up(0, worker="x" * 2**20)
    assert store.contexts.open_count() == 40
    for counter in range(30):
        id_ = context_pb2.ContextId(worker="attacker", incarnation=1, counter=counter + 1)
        call("ReleaseContext", owner_pb2.ReleaseContextRequest(context=id_))
    store.contexts.drop_worker("another", 1)
    assert store.contexts.open_count() == 0
    assert store.contexts._open._bytes.total == 0
    assert table.lookup([1]).shape == (1, 2)


def test_lookups_and_gradients_of_one_worker_take_half_the_memory_at_most(
    make_cluster: Callable[..., Cluster], ask: Callable[[str], Ask], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contexts, "_LEAST_BYTES", 2**20)
    cluster = make_cluster(parameter_servers=1, max_store_bytes=2**20)
    cluster.connect().table("t", rows=1000, dim=2, optimizer=SGD)
    call, store = ask(cluster.servers[0].server.address), cluster.stores[0]
    context = context_pb2.ContextId(worker="attacker", incarnation=1, counter=1)
    rows = np.arange(1000)

    def look_up(number: int) -> None:
        message = ps_pb2.LookupRequest(
            context=context, lookup=number + 1, shard_epoch=1, tables=["t"]
        )
        call("Lookup", Frame(message, [rows]))

    def send_back(number: int) -> None:
        message = ps_pb2.BackwardRequest(context=context, lookup=1, pass_number=number)
        call("Backward", Frame(message, [np.ones((1000, 2), np.float32)]))

    look_up(0)
    assert refused(send_back, 1000) == 60
    assert refused(lambda number: look_up(number + 1), 1000) == 0
    assert store.contexts._open._bytes.total <= 2**19
    other = context_pb2.ContextId(worker="another", incarnation=1, counter=1)
    message = ps_pb2.LookupRequest(context=other, lookup=1, shard_epoch=1, tables=["t"])
    call("Lookup", Frame(message, [rows]))
    for id_ in (context, other):
        call("ReleaseContext", owner_pb2.ReleaseContextRequest(context=id_))
    assert store.contexts._open._bytes.total == 0


def test_tombstones_are_bounded_whatever_is_released(
    cluster: Cluster, ask: Callable[[str], Ask], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = ask(cluster.servers[0].server.address)
    tombstones = cluster.stores[0].contexts._tombstones
    monkeypatch.setattr(tombstones._workers, "_max_workers", 500)

    def release(first: int, worker: str) -> None:
        ids = [
            context_pb2.ContextId(
                worker=worker.format(n % 2000), incarnation=1, counter=first + n + 1
            )
            for n in range(4000)
        ]
        call("ReleaseContext", owner_pb2.ReleaseContextRequest(context=ids[0], others=ids[1:]))

    for number in range(5):
        release(4000 * number, "w-{}")
        release(4000 * number, "one")

    kept = tombstones.dump()
    assert len(kept) <= 500
    assert sum(len(counters) for *_, counters in kept) <= 2 * limits.DEDUPE_NUMBERS
    many = [context_pb2.ContextId(worker="w", incarnation=1, counter=n) for n in range(5000)]
    with pytest.raises(LimitExceeded, match="the limit is 4096"):
        call("ReleaseContext", owner_pb2.ReleaseContextRequest(others=many))
    long = context_pb2.ContextId(worker="x" * 2**20, incarnation=1, counter=1)
    with pytest.raises(LimitExceeded, match="name of a worker"):
        call("ReleaseContext", owner_pb2.ReleaseContextRequest(context=long))


def test_refused_pushes_do_not_drop_the_dedupe_table_of_others(
    cluster: Cluster, ask: Callable[[str], Ask], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.connect().table("t", rows=100, dim=2, optimizer=SGD)
    pushes = cluster.stores[0].writer.pushes
    monkeypatch.setattr(pushes._entries, "_max_workers", 3)
    call = ask(cluster.servers[0].server.address)

    def push(worker: str, epoch: int = 1) -> bool:
        message = ps_pb2.PushRequest(
            worker=worker, incarnation=1, sequence=1, shard_epoch=epoch, tables=["t"]
        )
        row = cluster.stores[0].registry["t"].ids_of(np.array([0])) if epoch == 1 else [0]
        return bool(
            call("Push", Frame(message, [np.array(row), np.ones((1, 2), np.float32)])).applied
        )

    mesh = cluster.connect()
    mesh.table("t", rows=100, dim=2, optimizer=SGD).lookup(range(100))
    assert push("honest")
    for number in range(20):
        with pytest.raises(MeshError):
            push(f"attacker-{number}", epoch=99)

    assert not push("honest")


def test_snapshots_that_wait_for_a_step_are_bounded(
    cluster: Cluster, ask: Callable[[str], Ask]
) -> None:
    cluster.connect().table("t", rows=100, dim=2, optimizer=SGD)
    call, snapshots = (
        ask(cluster.servers[0].server.address),
        cluster.stores[0].checkpointing.snapshots,
    )

    def begin(number: int) -> None:
        owner = worker_pb2.WorkerId(name="attacker", incarnation=1)
        request = ps_pb2.BeginSnapshotRequest(
            snapshot=f"s-{number}", tables=["t"], step=10**6, owner=owner
        )
        call("BeginSnapshot", request)

    assert refused(begin, 100) == limits.SNAPSHOTS.per_caller
    snapshots.drop_worker("attacker", 1)
    assert (snapshots.count, snapshots._held.total) == (0, 0)
    begin(0)


def test_lane_offers_of_one_caller_leave_some_for_others() -> None:
    secrets = LaneSecrets()
    attacker = Caller("client", "attacker", 1)

    offers = [secrets.make(attacker) for _ in range(1000)]

    assert len([one for one in offers if one is not None]) == limits.LANE_OFFERS.per_caller
    assert secrets.make(Caller("trainer", "trainer-0", 1)) is not None
    assert secrets.take(offers[0] or b"") == attacker
    assert secrets.make(attacker) is not None

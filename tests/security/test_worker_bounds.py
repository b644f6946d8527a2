"""Attacks on what workers and parameter servers keep: each is refused, and others are served.

Limits are lowered where reaching them takes long. After each attack the counts are back.
"""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import gradmesh as gm
from gradmesh.protos import limits
from gradmesh.protos.common.v1 import context_pb2, value_pb2, worker_pb2
from gradmesh.protos.errors import InvalidRequest, LimitExceeded, MeshError
from gradmesh.protos.frame import Frame
from gradmesh.protos.owner.v1 import owner_pb2
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2 as ps_pb2
from gradmesh.sdk.node.node import Node
from gradmesh.sdk.node.start import init
from gradmesh.sdk.rpc.builtin import GATHER
from gradmesh.sdk.rpc.registry import REGISTRY
from gradmesh.sdk.rpc.rref import owners
from gradmesh.sdk.rpc.values import ValueEncoder
from gradmesh.sdk.transport.call import Caller
from gradmesh.sdk.transport.lane.handshake import LaneSecrets
from gradmesh.services.parameter_server import contexts
from tests.conftest import Cluster, wait_until
from tests.security.plain_calls import Ask, lowered, refused
from tests.security.plain_calls import ask as ask

SGD = gm.optim.SGD(lr=0.5)


@pytest.fixture
def worker(cluster: Cluster) -> Iterator[Node]:
    """A worker that serves functions."""
    node = init("worker-0", coordinator=cluster.address, install=False)
    yield node
    node.leave(1.0)


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
    with pytest.raises(InvalidRequest, match="not a name"):
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
    with pytest.raises(InvalidRequest, match="not a name"):
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
    with pytest.raises(InvalidRequest, match="not a name"):
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

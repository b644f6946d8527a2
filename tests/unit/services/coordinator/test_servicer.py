import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from gradmesh.protos.coordinator.v1 import (
    membership_pb2,
    rendezvous_pb2,
    status_pb2,
    table_pb2,
)
from gradmesh.protos.errors import KeyMissing, NotMember, RoundOpen, ShardNotReady, StaleGeneration
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.sdk.transport.server import Call
from gradmesh.services.coordinator.journal import Journal
from gradmesh.services.coordinator.machine import Machine
from gradmesh.services.coordinator.servicer import CoordinatorServicer
from tests.conftest import wait_until


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Let waits last far longer than the test."""
    monkeypatch.setattr("gradmesh.services.coordinator.servicer.MAX_WAIT_S", 60.0)


def call(timeout_s=60.0):
    return Call(Deadline.after(timeout_s), "test")


class Served:
    def __init__(self, clock, **options):
        self.journal = Journal(None)
        self.machine = Machine(parameter_servers=1, trainers=2, lease_s=10, journal=self.journal)
        self.servicer = CoordinatorServicer(self.machine, clock=clock, **options)


@pytest.fixture
def served(clock):
    made = Served(clock)
    yield made
    made.journal.close()


@pytest.fixture
def pool():
    with ThreadPoolExecutor(4) as pool:
        yield pool


def test_the_last_trainer_wakes_the_others(served, say, pool):
    servicer = served.servicer
    for i in range(2):
        servicer.register(say.register(f"trainer-{i}"), call())

    waiting = pool.submit(servicer.join_round, say.join("trainer-0"), call())
    last = servicer.join_round(say.join("trainer-1"), call())
    first = waiting.result(timeout=120)

    assert (first.generation, first.rank, first.world_size) == (1, 0, 2)
    assert (last.generation, last.rank, last.world_size) == (1, 1, 2)


def test_a_coordinator_that_leaves_ends_all_waits(served, say, pool):
    served.servicer.register(say.register("trainer-0"), call())
    waiting = pool.submit(served.servicer.join_round, say.join("trainer-0"), call())

    served.servicer.close()

    with pytest.raises(RoundOpen):
        waiting.result(timeout=120)


def test_a_wait_ends_before_the_caller_does(served, say):
    served.servicer.register(say.register("trainer-0"), call())

    begun = time.monotonic()
    with pytest.raises(RoundOpen):
        served.servicer.join_round(say.join("trainer-0"), call(0.3))

    assert 0.1 < time.monotonic() - begun < 10


def test_a_key_and_the_end_of_its_generation_wake_the_waiters(served, say, pool):
    servicer = served.servicer
    for i in range(2):
        servicer.register(say.register(f"trainer-{i}"), call())
        served.machine.join(say.join(f"trainer-{i}"))

    found, never = (
        pool.submit(servicer.get_key, rendezvous_pb2.GetKeyRequest(generation=1, key=key), call())
        for key in ("key", "never")
    )
    servicer.put_key(say.put(1, "key", b"value"), call())
    value = found.result(timeout=120).value
    servicer.leave(membership_pb2.LeaveRequest(name="trainer-0", incarnation=1), call())

    assert value == b"value"
    with pytest.raises(StaleGeneration):
        never.result(timeout=120)


def test_leases_run_out_with_the_sweep(served, say, clock, pool):
    servicer = served.servicer
    servicer.register(say.register("trainer-0"), call())
    waiting = pool.submit(servicer.join_round, say.join("trainer-0"), call())

    clock.now += 9
    servicer.sweep()
    renewed = servicer.renew_lease(
        membership_pb2.RenewLeaseRequest(name="trainer-0", incarnation=1), call()
    )
    clock.now += 11
    servicer.sweep()

    assert renewed.lease_s == 10
    with pytest.raises(NotMember):
        waiting.result(timeout=120)
    with pytest.raises(NotMember):
        servicer.renew_lease(
            membership_pb2.RenewLeaseRequest(name="trainer-0", incarnation=1), call()
        )


def test_surplus_waiters_get_shard_not_ready(clock, say, pool, eventually):
    served = Served(clock, max_waiters=1)
    servicer = served.servicer
    servicer.register(say.register("trainer-0"), call())
    waiting = pool.submit(servicer.join_round, say.join("trainer-0"), call())
    eventually(lambda: "trainer-0" in served.machine.rendezvous.joined)

    begun = time.monotonic()
    with pytest.raises(ShardNotReady):
        servicer.get_shard_map(table_pb2.GetShardMapRequest(), call())
    took_s = time.monotonic() - begun
    servicer.leave(membership_pb2.LeaveRequest(name="trainer-0", incarnation=1), call())

    assert took_s < 20  # it may wait for 60 s
    with pytest.raises(NotMember):
        waiting.result(timeout=120)
    served.journal.close()


def test_the_shard_map_comes_with_the_servers(served, say, pool):
    servicer = served.servicer

    waiting = pool.submit(servicer.get_shard_map, table_pb2.GetShardMapRequest(), call())
    servicer.register(say.register("ps-0", address="here:1"), call())

    (shard,) = waiting.result(timeout=120).map.shards
    assert (shard.name, shard.address) == ("ps-0", "here:1")


def test_tables_are_created_described_and_listed(served, say):
    servicer = served.servicer

    created = [
        servicer.create_table(table_pb2.CreateTableRequest(spec=say.table()), call()).created
        for _ in range(2)
    ]

    assert created == [True, False]
    asked = table_pb2.DescribeTableRequest(name="user")
    assert servicer.describe_table(asked, call()).spec == say.table()
    assert list(servicer.list_tables(table_pb2.ListTablesRequest(), call()).specs) == [say.table()]


def test_the_status_shows_everything(served, say, clock):
    servicer = served.servicer
    for i in range(2):
        servicer.register(say.register(f"trainer-{i}"), call())
        served.machine.join(say.join(f"trainer-{i}"))
    progress = status_pb2.Progress(step=7)
    servicer.report_progress(
        status_pb2.ReportProgressRequest(name="trainer-1", incarnation=1, progress=progress), call()
    )
    servicer.report_result(
        status_pb2.ReportResultRequest(generation=1, figures={"auc": 0.7}), call()
    )
    clock.now += 3

    status = servicer.get_status(status_pb2.GetStatusRequest(), call())

    assert (status.uptime_s, status.generation, status.result_generation) == (3, 1, 1)
    assert dict(status.result) == {"auc": 0.7}
    assert [(m.member.name, m.silence_s, m.progress.step) for m in status.members] == [
        ("trainer-0", 3, 0),
        ("trainer-1", 3, 7),
    ]


def test_reports_of_non_members_are_refused(served):
    with pytest.raises(NotMember):
        served.servicer.report_progress(
            status_pb2.ReportProgressRequest(name="nobody", incarnation=1), call()
        )
    with pytest.raises(StaleGeneration):
        served.servicer.report_result(status_pb2.ReportResultRequest(generation=3), call())
    with pytest.raises(StaleGeneration):
        served.servicer.get_key(rendezvous_pb2.GetKeyRequest(generation=1, key="k"), call())


def test_a_missing_key_is_named(served, say):
    for i in range(2):
        served.servicer.register(say.register(f"trainer-{i}"), call())
        served.machine.join(say.join(f"trainer-{i}"))

    with pytest.raises(KeyMissing, match="'k' is not published in generation 1"):
        served.servicer.get_key(rendezvous_pb2.GetKeyRequest(generation=1, key="k"), call(0.15))


def listen(name="trainer-0", wait_s=4.0, generation=1, **known):
    return membership_pb2.RenewLeaseRequest(
        name=name, incarnation=1, wait_s=wait_s, generation=generation, **known
    )


def wait_for_listener(servicer):
    wait_until(lambda: servicer._listeners)


@pytest.mark.parametrize("news", ["generation", "checkpoint", "map", "lost opener"])
def test_a_waiting_heartbeat_is_answered_on_a_change(served, say, clock, pool, news):
    servicer = served.servicer
    for i in range(2):
        servicer.register(say.register(f"trainer-{i}"), call())
        served.machine.join(say.join(f"trainer-{i}"))
    servicer.register(say.register("client-0"), call())
    request = listen()
    request.context_openers.add(name="client-0", incarnation=1)

    waiting = pool.submit(servicer.renew_lease, request, call())
    wait_for_listener(servicer)
    if news == "generation":
        servicer.leave(membership_pb2.LeaveRequest(name="trainer-1", incarnation=1), call())
    elif news == "checkpoint":
        servicer.request_checkpoint(status_pb2.RequestCheckpointRequest(), call())
    elif news == "map":
        servicer.register(say.register("ps-0"), call())
    else:
        servicer.leave(membership_pb2.LeaveRequest(name="client-0", incarnation=1), call())
    response = waiting.result(timeout=120)

    assert response.generation == (2 if news == "generation" else 1)
    assert response.checkpoint_request == (news == "checkpoint")
    assert response.shard_epoch == (news == "map")
    assert [one.name for one in response.gone] == (["client-0"] if news == "lost opener" else [])


def test_a_waiting_heartbeat_does_not_renew_the_lease_and_ends_with_it(served, say, clock, pool):
    servicer = served.servicer
    servicer.register(say.register("trainer-0"), call())

    waiting = pool.submit(servicer.renew_lease, listen(), call())
    wait_for_listener(servicer)
    clock.now += 9
    servicer.register(say.register("client-0"), call())  # wakes it without a change
    clock.now += 2
    servicer.sweep()

    with pytest.raises(NotMember):
        waiting.result(timeout=120)


def test_a_heartbeat_without_changes_is_answered_in_time(served, say):
    servicer = served.servicer
    servicer.register(say.register("trainer-0"), call())

    at_once = servicer.renew_lease(listen(generation=9), call())
    later = servicer.renew_lease(listen(wait_s=0.05), call())

    assert at_once.time_ms <= later.time_ms
    later.time_ms = at_once.time_ms
    assert at_once == later


def test_a_closing_coordinator_answers_waiting_heartbeats(served, say, pool):
    servicer = served.servicer
    servicer.register(say.register("trainer-0"), call())
    waiting = pool.submit(servicer.renew_lease, listen(), call())
    wait_for_listener(servicer)

    servicer.close()

    assert waiting.result(timeout=120).generation == 1

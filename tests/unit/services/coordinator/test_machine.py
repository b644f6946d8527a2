"""The whole state machine, by example."""

import sqlite3

import pytest

from gradmesh.protos.coordinator.v1 import membership_pb2, reshard_pb2, status_pb2
from gradmesh.protos.errors import (
    InvalidRequest,
    JobDone,
    NameTaken,
    NotMember,
    ProtocolMismatch,
    ShardNotReady,
)
from gradmesh.services.coordinator.journal import Journal
from gradmesh.services.coordinator.machine import Machine

LEASE_S = 10.0


def make(journal, parameter_servers=2, trainers=2, min_trainers=0):
    return Machine(
        parameter_servers=parameter_servers,
        trainers=trainers,
        lease_s=LEASE_S,
        journal=journal,
        min_trainers=min_trainers,
    )


def sign_of(name, incarnation=1, **contexts):
    """A heartbeat with a number of contexts for each worker's first incarnation."""
    request = membership_pb2.RenewLeaseRequest(name=name, incarnation=incarnation)
    for worker, count in contexts.items():
        request.context_openers.add(name=worker, incarnation=1)
        request.context_counts.append(count)
    return request


@pytest.fixture
def journal():
    made = Journal(None)
    yield made
    made.close()


@pytest.fixture
def formed(journal, say):
    machine = make(journal)
    for i in range(2):
        machine.register(say.register(f"trainer-{i}"), 0)
        machine.join(say.join(f"trainer-{i}"))
    return machine


def test_another_protocol_is_refused(journal, say):
    request = say.register("client-0")
    request.protocol = "gradmesh/0"

    with pytest.raises(ProtocolMismatch, match="same version"):
        make(journal).register(request, 0)


def test_only_trainers_join(journal, say):
    machine = make(journal)
    machine.register(say.register("client-0"), 0)

    with pytest.raises(NotMember, match="not a trainer"):
        machine.join(say.join("client-0"))
    with pytest.raises(NotMember):
        machine.join(say.join("trainer-9"))


@pytest.mark.parametrize("end", ["leave", "expire", "restart", "rejoin"])
def test_a_generation_ends_with_any_of_its_trainers(formed, say, end):
    formed.put(say.put(1, "key", b"value"))

    if end == "leave":
        formed.leave("trainer-0", 1)
    elif end == "expire":
        formed.renew(sign_of("trainer-1", 1), 9)
        formed.expire(11)
    elif end == "restart":
        formed.register(say.register("trainer-0", 2, replace=True), 1)
    else:
        formed.join(say.join("trainer-0", after=1))

    assert (formed.rendezvous.current, formed.rendezvous.formed) == (2, False)
    assert formed.renew(sign_of("trainer-1", 1), 12).generation == 2


def test_a_late_leave_of_a_former_incarnation_changes_nothing(formed, say):
    formed.register(say.register("trainer-0", 2, replace=True), 1)
    formed.join(say.join("trainer-0", 2))
    formed.join(say.join("trainer-1", after=1))

    formed.leave("trainer-0", 1)

    assert (formed.rendezvous.current, formed.rendezvous.formed) == (2, True)


def test_another_map_ends_the_generation_but_the_first_does_not(formed, say):
    for i in range(2):
        formed.register(say.register(f"ps-{i}"), 0)
    first = formed.shards.map.epoch, formed.rendezvous.formed

    formed.register(say.register("ps-1", 2, replace=True), 0)

    assert first == (1, True)
    assert (formed.shards.map.epoch, formed.rendezvous.formed) == (2, False)


def test_a_spare_server_takes_the_place_of_a_lost_one(journal, say):
    machine = make(journal)
    for i in range(3):
        machine.register(say.register(f"ps-{i}"), 0)

    machine.leave("ps-0", 1)

    assert [shard.name for shard in machine.shard_map().shards] == ["ps-2", "ps-1"]


def test_a_table_that_the_journal_did_not_take_does_not_exist(journal, say):
    machine = make(journal)
    journal.close()

    with pytest.raises(sqlite3.ProgrammingError):
        machine.create_table(say.table())

    assert machine.catalogue.all() == []


def test_a_spare_server_waits_for_a_member_not_yet_seen_after_a_restart(journal, say):
    machine = make(journal)
    for i in range(3):
        machine.register(say.register(f"ps-{i}"), 0)

    again = make(journal)
    again.register(say.register("ps-2"), 1)
    again.register(say.register("ps-0"), 1)

    assert [shard.name for shard in again.shards.map.shards] == ["ps-0", "ps-1"]
    with pytest.raises(ShardNotReady):
        again.shard_map()


def test_a_scaled_number_outlives_a_restart_but_not_another_setting(journal, say):
    machine = make(journal, parameter_servers=1)
    for i in range(2):
        machine.register(say.register(f"ps-{i}"), 0)
    machine.scale(reshard_pb2.ScaleParameterServersRequest(parameter_servers=2), 0)
    warnings = machine.status(0).warnings
    for done in range(2, 7):
        for i in range(2):
            report = reshard_pb2.ReportMoveRequest(
                name=f"ps-{i}", incarnation=1, reshard=1, done=done
            )
            machine.report_move(report, 1)

    assert "parameter servers are being scaled to 2: copying, 0 of 2048 buckets moved" in warnings
    assert not any("scaled" in warning for warning in machine.status(2).warnings)
    assert machine.scaling.number == 0
    assert len(machine.shard_map().shards) == 2
    assert make(journal, parameter_servers=1).shards.count == 2
    assert make(journal, parameter_servers=3).shards.count == 3


def test_a_restart_keeps_places_tables_and_map(formed, journal, say):
    for i in range(2):
        formed.register(say.register(f"ps-{i}"), 0)
    formed.create_table(say.table())

    again = make(journal)
    with pytest.raises(NotMember):
        again.renew(sign_of("trainer-9", 1), 100)
    with pytest.raises(ShardNotReady):
        again.shard_map()
    for name in ("trainer-1", "ps-1", "trainer-0", "ps-0"):
        answer = again.renew(sign_of(name), 100)

    assert answer.generation == 1
    assert again.rank_of(say.join("trainer-1")).rank == 1
    assert again.rank_of(say.join("trainer-1")).generation == 1
    assert again.shard_map().epoch == 1
    assert not again.create_table(say.table())
    again.expire(100 + LEASE_S)
    assert again.rendezvous.formed


def test_a_trainer_that_does_not_come_back_after_a_restart_is_lost(formed, journal, say):
    again = make(journal)
    again.expire(100)
    again.register(say.register("trainer-0"), 101)

    early = again.expire(109)
    late = again.expire(110.5)

    assert (early, late) == (False, True)
    assert (again.rendezvous.current, again.rendezvous.formed) == (2, False)


def test_a_trainer_that_comes_back_as_another_after_a_restart_ends_its_generation(
    formed, journal, say
):
    again = make(journal)

    with pytest.raises(NameTaken):
        again.register(say.register("trainer-0", 2), 100)
    again.register(say.register("trainer-0", 2, replace=True), 100)

    assert (again.rendezvous.current, again.rendezvous.formed) == (2, False)


def test_reports_are_removed_with_their_trainer(formed, say):
    report = status_pb2.ReportProgressRequest(name="trainer-0", incarnation=1)
    formed.report(report)

    formed.leave("trainer-0", 1)

    assert formed.reports.progress("trainer-0") is None


def test_a_generation_forms_with_fewer_trainers_after_the_join_window(journal, say):
    machine = make(journal, trainers=3, min_trainers=1)
    for i in range(2):
        machine.register(say.register(f"trainer-{i}"), 0)
        machine.join(say.join(f"trainer-{i}"), 0.5 * i)

    early = machine.expire(3.0)
    formed = machine.expire(3.6)
    places = [machine.rank_of(say.join(f"trainer-{i}")) for i in range(2)]
    # A third trainer joins: the two join again, and the third with them.
    machine.register(say.register("trainer-2"), 4)
    machine.join(say.join("trainer-2"), 4)
    over = machine.rendezvous.formed
    machine.join(say.join("trainer-0", after=1), 4.1)
    whole = machine.join(say.join("trainer-1", after=1), 4.2)
    machine.leave("trainer-1", 1)
    for name in ("trainer-0", "trainer-2"):
        machine.join(say.join(name, after=2), 5)
    machine.expire(8.5)

    assert (early, formed) == (False, True)
    assert [(p.generation, p.rank, p.world_size) for p in places] == [(1, 0, 2), (1, 1, 2)]
    assert (over, whole) == (False, True)
    assert machine.rendezvous.current == 3
    assert machine.rank_of(say.join("trainer-2")).world_size == 2


def test_finished_job_has_nothing_left_to_do_even_after_a_restart(formed, journal, say):
    formed.finish(
        status_pb2.ReportResultRequest(
            generation=formed.rendezvous.current, figures={"auc": 0.75}, job="a"
        )
    )
    formed.check()

    for machine in (formed, make(journal)):
        machine.register(say.register("trainer-0"), 0)
        late = say.join("trainer-0")
        late.job = "a"
        with pytest.raises(JobDone, match=r"'a' is done.*job\.id"):
            machine.join(late)
        assert machine.status(0).result == {"auc": 0.75}

    other = say.join("trainer-0")
    other.job = "b"
    make_again = make(journal)
    make_again.register(say.register("trainer-0"), 0)
    assert make_again.join(other) is False


def test_result_of_an_unnameable_job_changes_nothing(formed):
    bad = status_pb2.ReportResultRequest(
        generation=formed.rendezvous.current, figures={"auc": 0.5}, job="no name"
    )

    with pytest.raises(InvalidRequest, match="is not a name for a job"):
        formed.finish(bad)

    assert dict(formed.status(0).result) == {}
    formed.check()


def test_open_contexts_are_known_by_worker_and_owner(formed, say):
    formed.register(say.register("ps-0"), 0)

    formed.renew(sign_of("ps-0", w=2, v=1, x=0), 1)
    entry = next(m for m in formed.status(2).members if m.member.name == "ps-0")

    assert entry.open_contexts == 3
    assert [(c.opener.name, c.opener.incarnation, c.count) for c in entry.contexts] == [
        ("v", 1, 1),
        ("w", 1, 2),
    ]


def test_a_restarted_coordinator_reports_lost_workers_to_owners(formed, journal, say):
    formed.register(say.register("ps-0"), 0)
    formed.register(say.register("client-0"), 0)
    formed.register(say.register("client-1"), 0)
    formed.leave("client-0", 1)
    held = {"client-0": 1, "client-1": 2, "stranger": 3}

    again = make(journal)
    again.expire(100)
    gone = again.renew(sign_of("ps-0", **held), 101).gone
    again.expire(111)
    later = again.renew(sign_of("ps-0", **held), 111).gone

    assert [one.name for one in gone] == ["client-0"]
    assert [one.name for one in later] == ["client-0", "client-1"]


def test_a_member_that_was_silent_for_too_long_comes_back_with_its_contexts(formed, say):
    formed.register(say.register("ps-0"), 0)
    formed.register(say.register("client-0"), 0)
    formed.renew(sign_of("ps-0"), 10)
    formed.expire(11)
    lost = formed.renew(sign_of("ps-0", **{"client-0": 1}), 11).gone

    formed.register(say.register("client-0"), 12)

    assert [one.name for one in lost] == ["client-0"]
    assert not formed.renew(sign_of("ps-0", **{"client-0": 1}), 12).gone


def test_a_result_that_was_acknowledged_survives_a_restart(formed, journal):
    formed.finish(status_pb2.ReportResultRequest(generation=1, figures={"auc": 0.5}))

    status = make(journal).status(0)

    assert dict(status.result) == {"auc": 0.5}
    assert status.result_generation == 1

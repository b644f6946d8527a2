"""The whole machine: by example, and by random events with invariants after each."""

import contextlib
import sqlite3

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gradmesh.protos.coordinator.v1 import (
    membership_pb2,
    rendezvous_pb2,
    status_pb2,
    table_pb2,
)
from gradmesh.protos.errors import (
    InvalidRequest,
    KeyConflict,
    NameTaken,
    NotMember,
    ProtocolMismatch,
    RoundOpen,
    ShardNotReady,
    StaleGeneration,
    TableConflict,
)
from gradmesh.protos.limits import MAX_VALUE_BYTES
from gradmesh.protos.version import PROTOCOL
from gradmesh.services.coordinator.journal import Journal
from gradmesh.services.coordinator.machine import Machine
from gradmesh.services.coordinator.rounds import Rounds

LEASE_S = 10.0


def make(journal, parameter_servers=2, trainers=2):
    return Machine(
        parameter_servers=parameter_servers, trainers=trainers, lease_s=LEASE_S, journal=journal
    )


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

    with pytest.raises(NotMember, match="no trainer"):
        machine.join(say.join("client-0"))
    with pytest.raises(NotMember):
        machine.join(say.join("trainer-9"))


@pytest.mark.parametrize("end", ["leave", "expire", "restart", "rejoin"])
def test_a_generation_ends_with_any_of_its_trainers(formed, say, end):
    formed.put(say.put(1, "key", b"value"))

    if end == "leave":
        formed.leave("trainer-0", 1)
    elif end == "expire":
        formed.renew("trainer-1", 1, 9)
        formed.expire(11)
    elif end == "restart":
        formed.register(say.register("trainer-0", 2, replace=True), 1)
    else:
        formed.join(say.join("trainer-0", after=1))

    assert (formed.rounds.current, formed.rounds.formed) == (2, False)
    assert formed.renew("trainer-1", 1, 12).generation == 2


def test_a_late_goodbye_of_a_former_process_changes_nothing(formed, say):
    formed.register(say.register("trainer-0", 2, replace=True), 1)
    formed.join(say.join("trainer-0", 2))
    formed.join(say.join("trainer-1", after=1))

    formed.leave("trainer-0", 1)

    assert (formed.rounds.current, formed.rounds.formed) == (2, True)


def test_another_map_ends_the_generation_but_the_first_does_not(formed, say):
    for i in range(2):
        formed.register(say.register(f"ps-{i}"), 0)
    first = formed.shards.map.epoch, formed.rounds.formed

    formed.register(say.register("ps-1", 2, replace=True), 0)

    assert first == (1, True)
    assert (formed.shards.map.epoch, formed.rounds.formed) == (2, False)


def test_a_spare_server_takes_the_place_of_a_lost_one(journal, say):
    machine = make(journal)
    for i in range(3):
        machine.register(say.register(f"ps-{i}"), 0)

    machine.leave("ps-0", 1)

    assert [shard.name for shard in machine.shard_map().shards] == ["ps-2", "ps-1"]


def test_a_value_has_limits(formed, say):
    with pytest.raises(InvalidRequest, match="at most 65536"):
        formed.put(say.put(1, "key", b"x" * (MAX_VALUE_BYTES + 1)))
    with pytest.raises(InvalidRequest):
        formed.put(say.put(1, "no key!", b""))

    formed.put(say.put(1, "key", b"x" * MAX_VALUE_BYTES))


def test_a_table_that_the_journal_did_not_take_does_not_exist(journal, say):
    machine = make(journal)
    journal.close()

    with pytest.raises(sqlite3.ProgrammingError):
        machine.create_table(say.table())

    assert machine.catalogue.all() == []


def test_a_restart_keeps_places_tables_and_map(formed, journal, say):
    for i in range(2):
        formed.register(say.register(f"ps-{i}"), 0)
    formed.create_table(say.table())

    again = make(journal)
    with pytest.raises(NotMember):
        again.renew("trainer-0", 1, 100)
    with pytest.raises(ShardNotReady):
        again.shard_map()
    for name in ("trainer-1", "ps-1", "trainer-0", "ps-0"):
        answer = again.register(say.register(name), 100)

    assert answer.generation == 1
    assert again.place(say.join("trainer-1")).rank == 1
    assert again.place(say.join("trainer-1")).generation == 1
    assert again.shard_map().epoch == 1
    assert not again.create_table(say.table())
    again.expire(100 + LEASE_S)
    assert again.rounds.formed


def test_a_trainer_that_does_not_come_back_after_a_restart_is_lost(formed, journal, say):
    again = make(journal)
    again.expire(100)
    again.register(say.register("trainer-0"), 101)

    early = again.expire(109)
    late = again.expire(110.5)

    assert (early, late) == (False, True)
    assert (again.rounds.current, again.rounds.formed) == (2, False)


def test_a_trainer_that_comes_back_as_another_after_a_restart_ends_its_generation(
    formed, journal, say
):
    again = make(journal)

    again.register(say.register("trainer-0", 2), 100)

    assert (again.rounds.current, again.rounds.formed) == (2, False)


def test_reports_go_with_their_trainer(formed, say):
    report = status_pb2.ReportProgressRequest(name="trainer-0", incarnation=1)
    formed.report(report)

    formed.leave("trainer-0", 1)

    assert formed.board.progress("trainer-0") is None


NAMES = [f"{role}-{i}" for role in ("trainer", "ps") for i in range(3)]
TRAINERS = [name for name in NAMES if name.startswith("trainer")]
ROLES = {"trainer": membership_pb2.ROLE_TRAINER, "ps": membership_pb2.ROLE_PARAMETER_SERVER}
WORLD = 2
# What the machine may answer to an event that does not fit its state.
REFUSALS = (KeyConflict, NameTaken, NotMember, RoundOpen, StaleGeneration, TableConflict)


class Events(RuleBasedStateMachine):
    """Random events; the model knows only what processes themselves know."""

    @initialize()
    def begin(self):
        self.journal = Journal(None)
        self.machine = make(self.journal, parameter_servers=2, trainers=WORLD)
        self.now = 0.0
        self.incarnations = dict.fromkeys(NAMES, 1)
        self.joined = dict.fromkeys(TRAINERS, 0)
        self.generation = 0
        self.epoch = 0
        self.ranks = {}
        self.ranked = {}
        self.keys = {}
        self.tables = {}
        self.maps = {}

    def teardown(self):
        if hasattr(self, "journal"):
            self.journal.close()

    def tell(self, event, *args):
        try:
            return event(*args)
        except REFUSALS:
            return None

    @rule()
    def everybody_comes(self):
        for name in NAMES:
            self.register(name, True, 1)
        for name in TRAINERS:
            self.join(name, True)

    @rule(name=st.sampled_from(NAMES), replace=st.booleans(), port=st.integers(1, 2))
    def register(self, name, replace, port):
        member = membership_pb2.Member(
            name=name,
            role=ROLES[name.split("-")[0]],
            address=f"h:{port}",
            incarnation=self.incarnations[name],
        )
        request = membership_pb2.RegisterRequest(member=member, protocol=PROTOCOL, replace=replace)
        answer = self.tell(self.machine.register, request, self.now)
        if answer is not None:
            assert answer.generation == self.machine.rounds.current

    @rule(name=st.sampled_from(NAMES))
    def restart_process(self, name):
        self.incarnations[name] += 1
        if name in self.joined:
            self.joined[name] = 0

    @rule(name=st.sampled_from(NAMES), back=st.integers(0, 1))
    def renew(self, name, back):
        self.tell(self.machine.renew, name, self.incarnations[name] - back, self.now)

    @rule(name=st.sampled_from(NAMES), back=st.integers(0, 1))
    def leave(self, name, back):
        self.machine.leave(name, self.incarnations[name] - back)

    @rule(seconds=st.sampled_from([0.1, 4.0, 11.0]))
    def pass_time(self, seconds):
        self.now += seconds
        self.machine.expire(self.now)

    @rule(name=st.sampled_from(TRAINERS), anew=st.booleans())
    def join(self, name, anew):
        request = rendezvous_pb2.JoinRoundRequest(
            name=name,
            incarnation=self.incarnations[name],
            after_generation=self.joined[name] if anew else 0,
        )
        self.tell(self.machine.join, request)
        place = self.tell(self.machine.place, request)
        if place is not None:
            self.joined[name] = place.generation
            held = self.ranks.setdefault((place.generation, place.rank), name)
            assert held == name, "a rank belongs to one trainer"
            assert self.ranked.setdefault((place.generation, name), place.rank) == place.rank

    @rule(key=st.sampled_from("ab"), value=st.binary(max_size=2), back=st.integers(0, 1))
    def put(self, key, value, back):
        generation = self.machine.rounds.current - back
        request = rendezvous_pb2.PutKeyRequest(generation=generation, key=key, value=value)
        try:
            self.machine.put(request)
        except REFUSALS:
            return
        assert back == 0
        assert self.keys.setdefault((generation, key), value) == value

    @rule(name=st.sampled_from("ab"), rows=st.integers(1, 2))
    def create_table(self, name, rows):
        spec = table_pb2.TableSpec(
            name=name,
            rows=rows,
            dim=1,
            dtype="ELEMENT_TYPE_FLOAT32",
            initializer=table_pb2.Recipe(name="constant", settings={"value": 0.0}),
            optimizer=table_pb2.Recipe(name="sgd", settings={"lr": 0.1}),
        )
        if self.tell(self.machine.create_table, spec) is not None:
            assert self.tables.setdefault(name, rows) == rows

    @rule()
    def restart_coordinator(self):
        self.machine = make(self.journal, parameter_servers=2, trainers=WORLD)
        # Values lived in memory; trainers publish them anew.
        self.keys.clear()

    @invariant()
    def numbers_never_go_back(self):
        assert self.machine.rounds.current >= self.generation
        assert self.machine.shards.map.epoch >= self.epoch
        self.generation = self.machine.rounds.current
        self.epoch = self.machine.shards.map.epoch

    @invariant()
    def a_formed_generation_is_whole(self):
        rounds = self.machine.rounds
        assert not rounds.formed or len(rounds.joined) == WORLD
        assert rounds.formed or len(rounds.joined) < WORLD
        places = [
            rounds.place(name, inc)[1] for name, inc in rounds.joined.items() if rounds.formed
        ]
        assert sorted(places) == list(range(WORLD if rounds.formed else 0))
        for name, incarnation in rounds.joined.items():
            lease = next((x for x in self.machine.members.leases() if x.member.name == name), None)
            assert lease is None or lease.member.incarnation == incarnation

    @invariant()
    def no_key_outlives_its_generation(self):
        current = self.machine.rounds.current
        for (generation, key), value in self.keys.items():
            try:
                assert self.machine.rounds.get(generation, key) == value
                assert generation == current
            except StaleGeneration:
                assert generation < current or not self.machine.rounds.formed

    @invariant()
    def names_are_unique_and_an_epoch_is_one_map(self):
        names = [lease.member.name for lease in self.machine.members.leases()]
        assert len(names) == len(set(names))
        seen = self.machine.shards.map.SerializeToString(deterministic=True)
        assert self.maps.setdefault(self.machine.shards.map.epoch, seen) == seen
        shards = [shard.name for shard in self.machine.shards.map.shards]
        assert len(shards) == len(set(shards)) in (0, 2)

    @invariant()
    def the_journal_knows_what_others_rely_on(self):
        stored = Rounds(WORLD, self.journal.fact("round"))
        assert stored.remember() == self.machine.rounds.remember()
        assert self.journal.fact("shard_map") == self.machine.shards.map.SerializeToString()
        assert self.journal.tables() == self.machine.catalogue.all()

    @invariant()
    def the_map_is_given_out_only_whole(self):
        alive = {lease.member.name for lease in self.machine.members.leases()}
        with contextlib.suppress(ShardNotReady):
            assert {shard.name for shard in self.machine.shard_map().shards} <= alive


Events.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestEvents = Events.TestCase

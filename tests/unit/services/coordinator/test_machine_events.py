"""The state machine under random events, with the invariants of docs/coordinator.md after each."""

import contextlib

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gradmesh.protos.coordinator.v1 import (
    membership_pb2,
    rendezvous_pb2,
    reshard_pb2,
    status_pb2,
    table_pb2,
)
from gradmesh.protos.errors import (
    KeyConflict,
    NameTaken,
    NotMember,
    ReshardUnderWay,
    RoundOpen,
    ShardNotReady,
    StaleGeneration,
    TableConflict,
)
from gradmesh.protos.version import PROTOCOL
from gradmesh.services.coordinator.journal import Journal
from gradmesh.services.coordinator.machine import Machine
from gradmesh.services.coordinator.rendezvous import Rendezvous

LEASE_S = 10.0


def make(journal, parameter_servers=2, trainers=2, min_trainers=0):
    return Machine(
        parameter_servers=parameter_servers,
        trainers=trainers,
        lease_s=LEASE_S,
        journal=journal,
        min_trainers=min_trainers,
    )


NAMES = [f"{role}-{i}" for role in ("trainer", "ps") for i in range(3)]
TRAINERS = [name for name in NAMES if name.startswith("trainer")]
ROLES = {"trainer": membership_pb2.ROLE_TRAINER, "ps": membership_pb2.ROLE_PARAMETER_SERVER}
WORLD = 2
# The errors that the machine may raise for an event that does not fit its state.
REFUSALS = (
    KeyConflict,
    NameTaken,
    NotMember,
    ReshardUnderWay,
    RoundOpen,
    ShardNotReady,
    StaleGeneration,
    TableConflict,
)
SERVERS = [name for name in NAMES if name.startswith("ps")]
PHASES = reshard_pb2.ReshardPhase


class Events(RuleBasedStateMachine):
    """Random events; the model holds only the state that processes hold."""

    @initialize(least=st.sampled_from([0, 1]))
    def begin(self, least):
        self.journal = Journal(None)
        self.least = least
        self.machine = make(self.journal, trainers=WORLD, min_trainers=least)
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
        self.ends = {}
        self.committed = set()

    def teardown(self):
        if hasattr(self, "journal"):
            self.journal.close()

    def send(self, event, *args):
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
        answer = self.send(self.machine.register, request, self.now)
        if answer is not None:
            assert answer.generation == self.machine.rendezvous.current

    @rule(name=st.sampled_from(NAMES))
    def restart_process(self, name):
        self.incarnations[name] += 1
        if name in self.joined:
            self.joined[name] = 0

    @rule(name=st.sampled_from(NAMES), back=st.integers(0, 1))
    def renew(self, name, back):
        request = membership_pb2.RenewLeaseRequest(
            name=name, incarnation=self.incarnations[name] - back
        )
        self.send(self.machine.renew, request, self.now)

    @rule(name=st.sampled_from(NAMES), back=st.integers(0, 1))
    def leave(self, name, back):
        self.machine.leave(name, self.incarnations[name] - back)

    @rule(seconds=st.sampled_from([0.1, 4.0, 11.0]))
    def pass_time(self, seconds):
        self.now += seconds
        self.machine.expire(self.now)

    @rule(name=st.sampled_from(TRAINERS), rejoin=st.booleans())
    def join(self, name, rejoin):
        request = rendezvous_pb2.JoinRoundRequest(
            name=name,
            incarnation=self.incarnations[name],
            after_generation=self.joined[name] if rejoin else 0,
        )
        self.send(self.machine.join, request, self.now)
        place = self.send(self.machine.rank_of, request)
        if place is not None:
            self.joined[name] = place.generation
            held = self.ranks.setdefault((place.generation, place.rank), name)
            assert held == name, "a rank belongs to one trainer"
            assert self.ranked.setdefault((place.generation, name), place.rank) == place.rank

    @rule(key=st.sampled_from("ab"), value=st.binary(max_size=2), back=st.integers(0, 1))
    def put(self, key, value, back):
        generation = self.machine.rendezvous.current - back
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
        if self.send(self.machine.create_table, spec) is not None:
            assert self.tables.setdefault(name, rows) == rows

    @rule()
    def restart_coordinator(self):
        self.machine = make(self.journal, trainers=WORLD, min_trainers=self.least)
        # Values were in memory only; trainers publish them again.
        self.keys.clear()

    @rule(count=st.integers(1, 3))
    def scale(self, count):
        request = reshard_pb2.ScaleParameterServersRequest(parameter_servers=count)
        found = self.send(self.machine.scale, request, self.now)
        assert found is None or found.parameter_servers == count

    @rule(
        name=st.sampled_from(SERVERS),
        back=st.integers(0, 1),
        done=st.sampled_from(PHASES.values()),
        begun=st.integers(0, 3),
        error=st.sampled_from(["", "", "", "no room"]),
    )
    def report_a_move(self, name, back, done, begun, error):
        self._report(name, back, done, begun, error)

    def _report(self, name, back, done, begun=0, error=""):
        generation = self.machine.rendezvous.current
        request = reshard_pb2.ReportMoveRequest(
            name=name,
            incarnation=self.incarnations[name],
            reshard=max(0, self.machine.scaling.reshards.state.number - back),
            done=done,
            begun_steps=begun,
            origin=1,
            error=error,
        )
        self.send(self.machine.report_move, request, self.now)
        assert self.machine.rendezvous.current == generation, "a reshard ends no generation"

    @rule()
    def everybody_moves(self):
        for name in SERVERS:
            self._report(name, 0, self.machine.scaling.reshards.state.phase)

    @invariant()
    def a_reshard_ends_once(self):
        state = self.machine.scaling.reshards.state
        ended = (PHASES.RESHARD_PHASE_DONE, PHASES.RESHARD_PHASE_ABORTED)
        if state.phase in ended:
            assert self.ends.setdefault(state.number, state.phase) == state.phase
        else:
            assert state.number not in self.ends
        if state.phase == PHASES.RESHARD_PHASE_ADOPTING:
            self.committed.add(state.number)
        if state.phase != PHASES.RESHARD_PHASE_DONE:
            assert (state.number in self.committed) == (
                state.phase == PHASES.RESHARD_PHASE_ADOPTING
            )

    @invariant()
    def numbers_never_go_back(self):
        assert self.machine.rendezvous.current >= self.generation
        assert self.machine.shards.map.epoch >= self.epoch
        self.generation = self.machine.rendezvous.current
        self.epoch = self.machine.shards.map.epoch

    @rule()
    def ask_for_a_checkpoint(self):
        asked = self.send(self.machine.request_checkpoint)
        assert asked is None or asked == self.machine.reports.requests

    @rule(name=st.sampled_from(TRAINERS), back=st.integers(0, 1))
    def write_a_checkpoint(self, name, back):
        reported = status_pb2.Checkpoint(request=max(0, self.machine.reports.requests - back))
        request = status_pb2.ReportCheckpointRequest(
            name=name, incarnation=self.incarnations[name], checkpoint=reported
        )
        self.send(self.machine.report_checkpoint, request, self.now)

    @invariant()
    def what_the_page_promises_holds(self):
        self.machine.check()
        self.machine.status(self.now)

    @invariant()
    def no_key_outlives_its_generation(self):
        current = self.machine.rendezvous.current
        for (generation, key), value in self.keys.items():
            try:
                assert self.machine.rendezvous.get(generation, key) == value
                assert generation == current
            except StaleGeneration:
                assert generation < current or not self.machine.rendezvous.formed

    @invariant()
    def an_epoch_is_one_map(self):
        seen = self.machine.shards.map.SerializeToString(deterministic=True)
        assert self.maps.setdefault(self.machine.shards.map.epoch, seen) == seen

    @invariant()
    def a_restarted_coordinator_would_go_on(self):
        stored = Rendezvous(WORLD, self.journal.fact("round"), minimum=self.least)
        assert stored.dump() == self.machine.rendezvous.dump()

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

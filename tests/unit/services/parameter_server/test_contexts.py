import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gradmesh.protos import limits
from gradmesh.protos.common.v1 import context_pb2
from gradmesh.protos.errors import ContextReleased, InvalidRequest, LookupNotFound
from gradmesh.sdk.autograd import tombstones
from gradmesh.services.parameter_server.contexts import Contexts
from gradmesh.services.parameter_server.open_context import PrefetchedLookup, TableLookup


def part(*slots):
    return TableLookup("t", np.array(slots, np.int64))


def grads(value=1.0, count=1):
    return [np.full((count, 2), value, np.float32)]


def test_gradients_come_in_the_order_of_the_lookups(make):
    contexts = Contexts()
    for number in (2, 1):
        contexts.add_lookup(make.context(), number, [part(number)])
        contexts.add_gradients(make.context(), number, grads(number))

    taken = contexts.take_gradients(make.context()).gradients()

    assert [(g.slots.tolist(), g.rows[0, 0]) for g in taken] == [([1], 1), ([2], 2)]
    assert contexts.open_count() == 0


def test_gradients_count_once(make):
    contexts = Contexts()
    contexts.add_lookup(make.context(), 1, [part(1)])

    contexts.add_gradients(make.context(), 1, grads(1))
    contexts.add_gradients(make.context(), 1, grads(2))
    contexts.add_lookup(make.context(), 1, [part(9)])

    (taken,) = contexts.take_gradients(make.context()).gradients()
    assert (taken.slots.tolist(), taken.rows[0, 0]) == ([1], 1)


def test_a_rerouted_lookup_replaces_the_former_one(make):
    contexts = Contexts()
    contexts.add_lookup(make.context(), 1, [part(1, 2)])

    contexts.add_lookup(make.context(), 1, [part(3)])

    assert contexts.parts(make.context(), 1)[0].slots.tolist() == [3]


def test_lookups_without_gradients_yield_none(make):
    contexts = Contexts()
    contexts.add_lookup(make.context(), 1, [part(1)])

    assert contexts.take_gradients(make.context()).gradients() == []


def test_an_unknown_lookup_is_named(make):
    contexts = Contexts()
    contexts.add_lookup(make.context(), 1, [part(1)])

    with pytest.raises(LookupNotFound, match="w/1/1 made no lookup 2 here"):
        contexts.parts(make.context(), 2)
    with pytest.raises(LookupNotFound):
        contexts.parts(make.context(2), 1)
    contexts.add_gradients(make.context(2), 1, grads())

    assert contexts.open_count() == 1


def test_applying_again_finds_nothing(make):
    contexts = Contexts()
    contexts.add_lookup(make.context(), 1, [part(1)])
    contexts.add_gradients(make.context(), 1, grads())
    contexts.take_gradients(make.context())

    assert contexts.take_gradients(make.context()).gradients() == []
    assert not contexts.release(make.context())
    assert contexts.take_gradients(make.context()).gradients() == []


@pytest.mark.parametrize("end", ["take_gradients", "release", "release_all"])
def test_late_messages_do_not_revive(make, end):
    contexts = Contexts()
    contexts.add_lookup(make.context(), 1, [part(1)])
    if end == "release_all":
        contexts.release_all()
    else:
        getattr(contexts, end)(make.context())

    for late in (
        lambda: contexts.check(make.context()),
        lambda: contexts.add_lookup(make.context(), 2, [part(1)]),
        lambda: contexts.parts(make.context(), 1),
        lambda: contexts.add_gradients(make.context(), 1, grads()),
    ):
        with pytest.raises(ContextReleased, match="open a new one"):
            late()

    assert contexts.open_count() == 0


def test_a_released_context_is_not_applied(make):
    contexts = Contexts()
    contexts.add_lookup(make.context(), 1, [part(1)])

    found = contexts.release(make.context())

    assert found
    with pytest.raises(ContextReleased):
        contexts.take_gradients(make.context())


def test_a_context_released_before_its_lookup_arrives_stays_released(make):
    contexts = Contexts()
    contexts.release(make.context())

    with pytest.raises(ContextReleased):
        contexts.add_lookup(make.context(), 1, [part(1)])


@pytest.mark.parametrize("field", ["worker", "incarnation", "counter"])
def test_a_context_has_an_id(make, field):
    contexts = Contexts()
    broken = make.context()
    broken.ClearField(field)

    for use in (contexts.check, contexts.take_gradients, contexts.release):
        with pytest.raises(InvalidRequest, match="set all three"):
            use(broken)


def test_a_restarted_worker_leaks_nothing(make):
    contexts = Contexts()
    contexts.add_lookup(make.context(1, incarnation=1), 1, [part(1)])
    contexts.add_lookup(make.context(1, incarnation=1, worker="other"), 1, [part(1)])

    contexts.add_lookup(make.context(1, incarnation=2), 1, [part(1)])

    assert contexts.open_count() == 2
    with pytest.raises(ContextReleased):
        contexts.parts(make.context(1, incarnation=1), 1)


def test_unused_contexts_are_dropped(make, clock):
    contexts = Contexts(clock)
    contexts.add_lookup(make.context(1), 1, [part(1)])
    contexts.add_lookup(make.context(2), 1, [part(1)])
    clock.now += 50
    contexts.parts(make.context(2), 1)
    clock.now += 20

    dropped = contexts.release_idle(60)

    assert (dropped, contexts.open_count()) == (1, 1)
    with pytest.raises(ContextReleased):
        contexts.check(make.context(1))


def test_tombstones_are_bounded_and_an_old_open_context_survives(make, monkeypatch):
    monkeypatch.setattr(tombstones, "_TOMBSTONES", 16)
    contexts = Contexts()
    contexts.add_lookup(make.context(1), 1, [part(1)])
    contexts.add_gradients(make.context(1), 1, grads())
    for counter in range(2, 200):
        contexts.add_lookup(make.context(counter), 1, [part(1)])
        contexts.take_gradients(make.context(counter))

    kept = {n for held in (contexts._tombstones, contexts._applied) for n in held.dump()[0][3]}
    assert len(kept) <= 16
    with pytest.raises(ContextReleased):
        contexts.check(make.context(2))
    assert len(contexts.take_gradients(make.context(1)).gradients()) == 1
    assert contexts.take_gradients(make.context(1)).gradients() == []


def test_workers_are_bounded(make):
    contexts = Contexts()
    most = limits.DEDUPE_WORKERS
    for i in range(most + 100):
        contexts.release(make.context(worker=f"client-{i}"))

    assert len(contexts._tombstones) == most


class Messages(RuleBasedStateMachine):
    """Messages of two workers, repeated, late and out of order."""

    ids = st.tuples(st.sampled_from("ab"), st.integers(1, 2), st.integers(1, 4))

    @initialize()
    def begin(self):
        self.contexts = Contexts()
        self.over = set()
        self.given = {}
        self.taken = []

    def call(self, use, id_, *args):
        worker, incarnation, counter = id_
        key = context_pb2.ContextId(worker=worker, incarnation=incarnation, counter=counter)
        try:
            return use(key, *args), True
        except (ContextReleased, LookupNotFound):
            return None, False

    @rule(id_=ids, number=st.integers(1, 2))
    def look_up(self, id_, number):
        _, worked = self.call(self.contexts.add_lookup, id_, number, [part(number)])
        assert not (worked and id_ in self.over)

    @rule(id_=ids, number=st.integers(1, 2))
    def add_gradients(self, id_, number):
        _, found = self.call(self.contexts.parts, id_, number)
        if found:
            assert id_ not in self.over
            self.call(self.contexts.add_gradients, id_, number, grads())
            self.given.setdefault(id_, set()).add(number)

    @rule(id_=ids)
    def take(self, id_):
        context, worked = self.call(self.contexts.take_gradients, id_)
        if worked:
            numbers = {g.slots[0] for g in context.gradients()}
            assert id_ not in self.over or not numbers
            assert numbers <= self.given.get(id_, set())
            if numbers:
                self.taken.append(id_)
            self.over.add(id_)

    @rule(id_=ids)
    def release(self, id_):
        self.call(self.contexts.release, id_)
        self.over.add(id_)

    @invariant()
    def nothing_is_applied_twice(self):
        assert len(self.taken) == len(set(self.taken))

    @invariant()
    def what_is_over_is_not_open(self):
        assert not set(self.contexts._open) & self.over


Messages.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestMessages = Messages.TestCase


def test_a_lookup_made_ahead_moves_to_the_context_of_its_step(make):
    contexts = Contexts()
    ahead = PrefetchedLookup([part(1, 2)], 7)
    contexts.add_prefetch(make.context(counter=1), 3, ahead)

    first = contexts.adopt(make.context(counter=1), 3, make.context(counter=2), 5)
    again = contexts.adopt(make.context(counter=1), 3, make.context(counter=2), 5)

    assert first is again is ahead
    assert contexts.open_count() == 1
    contexts.add_gradients(make.context(counter=2), 5, grads(count=2))
    (taken,) = contexts.take_gradients(make.context(counter=2)).gradients()
    assert taken.slots.tolist() == [1, 2]


def test_a_context_made_ahead_lasts_until_its_last_lookup_is_gone(make):
    contexts = Contexts()
    for number in (1, 2):
        contexts.add_prefetch(make.context(counter=1), number, PrefetchedLookup([part(number)], 0))

    contexts.adopt(make.context(counter=1), 1, None, 0)
    with pytest.raises(LookupNotFound):
        contexts.adopt(make.context(counter=1), 1, None, 0)
    contexts.adopt(make.context(counter=1), 2, None, 0)

    with pytest.raises(ContextReleased):
        contexts.adopt(make.context(counter=1), 2, None, 0)
    assert contexts.open_count() == 0


def test_a_released_context_adopts_nothing(make):
    contexts = Contexts()
    contexts.add_prefetch(make.context(counter=1), 1, PrefetchedLookup([part(1)], 0))
    contexts.release(make.context(counter=2))

    with pytest.raises(ContextReleased):
        contexts.adopt(make.context(counter=1), 1, make.context(counter=2), 1)

    assert contexts.adopt(make.context(counter=1), 1, make.context(counter=3), 1).count == 0

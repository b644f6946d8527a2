import threading
import time

import pytest

from gradmesh.protos import limits
from gradmesh.protos.coordinator.v1 import membership_pb2
from gradmesh.protos.errors import NameTaken, NotMember, Unreachable
from gradmesh.sdk.cluster.lease import Lease
from gradmesh.sdk.transport.deadline import Deadline


class Coordinator:
    """A scripted coordinator that records its calls."""

    def __init__(self, lease_s=0.03):
        self.lease_s = lease_s
        self.generation = 1
        self.failures = []
        self.asked = []
        self.renewed = threading.Semaphore(0)

    def _answer(self, what):
        self.asked.append(what)
        if self.failures and self.failures[0][0] == what:
            raise self.failures.pop(0)[1]

    def register(self, member, replace, deadline):
        self._answer("register")
        return membership_pb2.RegisterResponse(lease_s=self.lease_s, generation=self.generation)

    def renew_lease(self, name, incarnation, deadline, openers=None, wait_s=0, known=None):
        assert deadline.remaining_s() <= 2
        self.renewed.release()
        self._answer("renew")
        return membership_pb2.RenewLeaseResponse(
            lease_s=self.lease_s, generation=self.generation, shard_epoch=5
        )

    def leave(self, name, incarnation, deadline):
        self._answer("leave")
        self.goodbye_s = deadline.remaining_s()


def make(coordinator, **options):
    member = membership_pb2.Member(name="w", incarnation=1)
    lease = Lease(coordinator, member)
    lease.start(**{"deadline": Deadline.after(20.0)} | options)
    return lease


def wait_for_renewals(coordinator, count):
    for _ in range(count):
        assert coordinator.renewed.acquire(timeout=120)


def test_heartbeats_return_generation_and_shard_epoch(eventually):
    coordinator = Coordinator()
    lease = make(coordinator)
    coordinator.generation = 4

    eventually(lambda: (lease.generation, lease.shard_epoch) == (4, 5))
    lease.close()
    lease.close()

    assert coordinator.asked.count("leave") == 1
    assert not lease._thread.is_alive()


def test_failures_do_not_end_the_thread():
    coordinator = Coordinator()
    coordinator.failures = [("renew", Unreachable("gone"))] * 3

    lease = make(coordinator)
    wait_for_renewals(coordinator, 5)
    lease.close()

    assert not lease.lost
    assert coordinator.failures == []


def test_a_member_registers_again_with_a_coordinator_that_lost_it():
    coordinator = Coordinator()
    coordinator.failures = [("renew", NotMember("who?"))]

    lease = make(coordinator)
    wait_for_renewals(coordinator, 2)
    lease.close()

    assert coordinator.asked[:3] == ["register", "renew", "register"]


def test_a_name_that_was_taken_ends_the_membership():
    coordinator = Coordinator()
    coordinator.failures = [("renew", NotMember("who?")), ("register", NameTaken("taken"))]
    notified = threading.Event()

    lease = Lease(
        _RegistersOnce(coordinator),
        membership_pb2.Member(name="w", incarnation=1),
        on_lost=notified.set,
    )
    lease.start(deadline=Deadline.after(20.0))
    was_notified = notified.wait(120)
    lease.close()

    assert was_notified
    assert lease.lost
    assert "leave" not in coordinator.asked


class _RegistersOnce:
    """The first registration works; planned failures apply to later ones."""

    def __init__(self, coordinator):
        self._coordinator = coordinator
        self._first = True

    def register(self, member, replace, deadline):
        if self._first:
            self._first = False
            return membership_pb2.RegisterResponse(lease_s=self._coordinator.lease_s)
        return self._coordinator.register(member, replace, deadline)

    def __getattr__(self, name):
        return getattr(self._coordinator, name)


def test_a_taken_name_is_waited_for():
    coordinator = Coordinator()
    coordinator.failures = [("register", NameTaken("taken", expires_in_s=0.05))]

    lease = make(coordinator)
    lease.close()

    assert coordinator.asked[:2] == ["register", "register"]


def test_a_name_taken_for_longer_than_there_is_time_is_refused_at_once():
    coordinator = Coordinator()
    coordinator.failures = [("register", NameTaken("taken", expires_in_s=600))]

    begun = time.monotonic()
    with pytest.raises(NameTaken):
        make(coordinator)

    assert time.monotonic() - begun < 15  # it may wait for 20 s


def test_leaving_an_unresponsive_coordinator_has_a_short_deadline(eventually):
    coordinator = Coordinator()
    coordinator.failures = [("renew", Unreachable("gone"))] * 1000

    lease = make(coordinator)
    eventually(lambda: not lease._answered)
    lease.close()

    assert coordinator.goodbye_s <= 0.2


def test_a_closed_lease_does_not_register_again():
    coordinator = Coordinator(lease_s=60)
    lease = make(coordinator)
    lease.close()
    coordinator.failures = [("renew", NotMember("you left"))]

    with pytest.raises(NotMember):
        lease.renew(Deadline.after(1.0))

    assert coordinator.asked == ["register", "leave", "renew"]


def test_open_contexts_are_reported_and_those_of_the_lost_are_dropped():
    reported, dropped = [], []

    class Watching(Coordinator):
        def renew_lease(self, name, incarnation, deadline, openers=None, wait_s=0, known=None):
            reported.append(dict(openers))
            response = super().renew_lease(name, incarnation, deadline)
            response.gone.add(name="x", incarnation=3)
            return response

    class Contexts:
        def openers(self):
            return {("x", 3): 2, ("w", 1): 1}

        def drop_worker(self, name, incarnation):
            dropped.append((name, incarnation))
            return 1

    lease = make(Watching(lease_s=60))
    lease.watch(Contexts())
    lease.watch(Contexts())
    lease.renew(Deadline.after(1.0))
    lease.close()

    assert reported == [{("w", 1): 2, ("x", 3): 4}]
    assert dropped == [("x", 3), ("x", 3)]


def test_the_first_heartbeat_is_sent_at_once_and_may_wait_for_changes(eventually):
    notified = []

    class Waiting(Coordinator):
        def renew_lease(self, name, incarnation, deadline, openers=None, wait_s=0, known=None):
            notified.append((wait_s, known.generation))
            return super().renew_lease(name, incarnation, deadline)

    coordinator = Waiting(lease_s=0.3)
    lease = make(coordinator)
    coordinator.generation = 7
    eventually(lambda: (0.1, 7) in [(round(wait_s, 3), known) for wait_s, known in notified])
    lease.close()

    # Before the first heartbeat the member has the generation of its registration.
    assert notified[0] == (pytest.approx(0.1), 1)
    assert lease.generation == 7


def test_heartbeats_name_openers_in_turn_when_there_are_too_many(monkeypatch):
    monkeypatch.setattr(limits, "MAX_OPENERS", 4)
    named = []

    class Recording(Coordinator):
        def renew_lease(self, name, incarnation, deadline, openers=None, wait_s=0, known=None):
            named.append(sorted(openers))
            return membership_pb2.RenewLeaseResponse(lease_s=1.0)

    class Held:
        def openers(self):
            return {(f"w-{number}", 1): 1 for number in range(10)}

    lease = Lease(Recording(), membership_pb2.Member(name="w", incarnation=1))
    lease.watch(Held())
    for _ in range(3):
        lease.renew(Deadline.after(20.0))

    assert [len(one) for one in named] == [4, 4, 4]
    assert {opener for one in named for opener in one} == set(Held().openers())

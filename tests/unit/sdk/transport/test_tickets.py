import threading

import pytest

from gradmesh.protos.errors import NotMember, TicketRejected, Unreachable
from gradmesh.protos.ticket import TICKET_METADATA
from gradmesh.sdk.transport.identity import CoordinatorClock
from gradmesh.sdk.transport.tickets import TicketCredentials, TicketSource


class Coordinator:
    """Issues numbered tickets of 900 s for every name but "nobody"."""

    def __init__(self):
        self.asked = []
        self.failure = None
        self.may_answer = threading.Event()
        self.may_answer.set()

    def __call__(self, audiences, deadline):
        self.asked.append(sorted(audiences))
        assert self.may_answer.wait(120)
        if self.failure is not None:
            raise self.failure
        number = len(self.asked)
        return [(b"" if a == "nobody" else f"{a} {number}".encode(), 900.0) for a in audiences]


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def coordinator():
    return Coordinator()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def source(coordinator, clock):
    source = TicketSource(True, clock)
    source.join(coordinator)
    return source


def test_a_ticket_is_asked_for_once(source, coordinator, clock):
    assert {source.ticket("ps-0", 5) for _ in range(3)} == {b"ps-0 1"}
    clock.now += 299
    assert source.ticket("ps-0", 5) == b"ps-0 1"
    assert coordinator.asked == [["ps-0"]]


def test_an_old_ticket_is_used_while_a_new_one_is_fetched(source, coordinator, clock, eventually):
    source.ticket("ps-0", 5)
    source.ticket("ps-1", 5)
    coordinator.may_answer.clear()
    clock.now += 301

    assert [source.ticket("ps-0", 5) for _ in range(3)] == [b"ps-0 1"] * 3
    coordinator.may_answer.set()

    eventually(lambda: source.ticket("ps-0", 5) == b"ps-0 3")
    assert source.ticket("ps-1", 5) == b"ps-1 3"
    assert coordinator.asked[2:] == [["ps-0", "ps-1"]]


def test_an_outage_is_noticed_when_the_ticket_ends_and_not_before(
    source, coordinator, clock, eventually
):
    source.ticket("ps-0", 5)
    coordinator.failure = Unreachable("gone")
    for _ in range(5):
        clock.now += 179
        assert source.ticket("ps-0", 5) == b"ps-0 1"
    eventually(lambda: not source._asking.locked())
    clock.now += 10

    with pytest.raises(Unreachable, match="gone"):
        source.ticket("ps-0", 5)
    coordinator.failure = None
    assert source.ticket("ps-0", 5).startswith(b"ps-0")


def test_threads_that_want_tickets_at_once_share_a_request(source, coordinator, eventually):
    coordinator.may_answer.clear()
    names = [f"ps-{number}" for number in range(5)]
    threads = [threading.Thread(target=source.ticket, args=(name, 20)) for name in names]
    threads[0].start()
    eventually(lambda: coordinator.asked)
    for thread in threads[1:]:
        thread.start()
    eventually(lambda: len(source._wanted) == 4)
    coordinator.may_answer.set()
    for thread in threads:
        thread.join(20)

    assert coordinator.asked == [["ps-0"], names[1:]]


def test_a_name_without_a_member_is_unreachable(source):
    with pytest.raises(Unreachable, match="no member is named 'nobody'"):
        source.ticket("nobody", 5)


def test_a_process_that_is_not_registered_asks_again_later(source, coordinator):
    coordinator.failure = NotMember("register again")

    with pytest.raises(TicketRejected, match="register again"):
        source.ticket("ps-0", 5)


def test_an_open_cluster_is_asked_for_nothing_until_a_member_rejects_a_call(coordinator):
    source = TicketSource(False)
    source.join(coordinator)
    credentials = TicketCredentials(source, "ps-0")

    assert credentials.metadata(5) == ()
    assert coordinator.asked == []
    credentials.renew()
    assert credentials.metadata(5) == ((TICKET_METADATA, b"ps-0 1"),)


def test_a_rejected_ticket_is_replaced_once(source, coordinator):
    first, second = TicketCredentials(source, "ps-0"), TicketCredentials(source, "ps-0")
    assert first.metadata(5) == second.metadata(5)

    for credentials in (first, second):
        credentials.renew()
        credentials.metadata(5)

    assert coordinator.asked == [["ps-0"]] * 2
    assert second.metadata(5) == ((TICKET_METADATA, b"ps-0 2"),)


def test_a_process_that_has_not_joined_has_no_tickets():
    with pytest.raises(TicketRejected, match="has not joined"):
        TicketSource(True).ticket("ps-0", 5)


def test_the_number_of_tickets_is_bounded(source, monkeypatch):
    monkeypatch.setattr("gradmesh.sdk.transport.tickets._MAX_HELD", 3)
    for number in range(10):
        source.ticket(f"ps-{number}", 5)

    assert len(source._held) == 3


def test_the_coordinators_clock_goes_on_without_it(clock):
    ours = CoordinatorClock(clock)
    assert ours.now_ms() is None

    ours.set(5_000)
    clock.now += 2
    ours.set(0)

    assert ours.now_ms() == pytest.approx(7_000)

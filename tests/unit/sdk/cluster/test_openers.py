import pytest

from gradmesh.protos.common.v1 import context_pb2
from gradmesh.protos.errors import Forbidden, ShardNotReady, Unreachable
from gradmesh.sdk.cluster.openers import OpenerCheck
from gradmesh.sdk.transport.call import UNRESTRICTED, Caller
from gradmesh.sdk.transport.deadline import Deadline

OPENED = context_pb2.ContextId(worker="trainer-0", incarnation=5, counter=1)
SOON = Deadline.after(20)


class Coordinator:
    def __init__(self):
        self.asked = []
        self.failure = None

    def check_workers(self, workers, deadline):
        assert deadline.remaining_s() <= 2
        self.asked += workers
        if self.failure is not None:
            raise self.failure
        return [one == ("trainer-0", 5) for one in workers]


@pytest.fixture
def coordinator():
    return Coordinator()


@pytest.fixture
def openers(coordinator):
    check = OpenerCheck()
    check.join(coordinator)
    return check


def caller(name, member_role, incarnation=5):
    return Caller("admin", name, incarnation, member_role=member_role)


def test_the_opener_is_not_asked_about(openers, coordinator):
    openers.check(caller("trainer-0", "client"), OPENED, SOON)
    openers.check(UNRESTRICTED, OPENED, SOON)

    assert coordinator.asked == []


@pytest.mark.parametrize("role", ["worker", "trainer", "parameter-server"])
def test_a_member_that_takes_part_is_checked_once(openers, coordinator, role):
    for _ in range(3):
        openers.check(caller("other", role), OPENED, SOON)

    assert coordinator.asked == [("trainer-0", 5)]


@pytest.mark.parametrize(("name", "role"), [("other", "client"), ("", ""), ("trainer-0", "client")])
def test_clients_and_strangers_have_their_own_contexts_only(openers, coordinator, name, role):
    with pytest.raises(Forbidden, match="may not act for 'trainer-0'"):
        openers.check(caller(name, role, incarnation=6), OPENED, SOON)

    assert coordinator.asked == []


def test_an_invented_incarnation_is_refused_each_time(openers, coordinator):
    invented = context_pb2.ContextId(worker="trainer-0", incarnation=2**64 - 1, counter=1)

    for _ in range(2):
        with pytest.raises(Forbidden, match="no process 'trainer-0'"):
            openers.check(caller("other", "worker"), invented, SOON)

    assert len(coordinator.asked) == 2


def test_a_caller_repeats_the_call_while_the_coordinator_is_away(openers, coordinator):
    coordinator.failure = Unreachable("gone")

    with pytest.raises(ShardNotReady, match="waits for the coordinator: gone"):
        openers.check(caller("other", "worker"), OPENED, SOON)
    with pytest.raises(ShardNotReady, match="has not joined"):
        OpenerCheck().check(caller("other", "worker"), OPENED, SOON)


def test_what_is_known_is_bounded(openers, coordinator, monkeypatch):
    monkeypatch.setattr("gradmesh.sdk.cluster.openers._MAX_KNOWN", 2)
    coordinator.check_workers = lambda workers, deadline: [True]
    for number in range(9):
        openers.check_process(caller("other", "worker"), (f"w-{number}", 1), SOON)

    assert len(openers._known) == 2

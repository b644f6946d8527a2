"""The gate of a server: which calls it blocks, and until when."""

import threading

import pytest

from gradmesh.protos.errors import DeadlineExceeded, Draining, ShardNotReady
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.services.parameter_server.gate import Gate, Kind, kind_of_lookup

KINDS = (Kind.BEGINS, Kind.CHANGES, Kind.READS)


@pytest.fixture
def gate():
    return Gate("ps-0", max_waiters=2)


def enters(gate, kind, timeout_s=0.11):
    try:
        with gate.passing(kind, Deadline.after(timeout_s)):
            return True
    except ShardNotReady:
        return False


@pytest.mark.parametrize("shut", [Kind.NOTHING, *KINDS])
def test_a_shut_gate_blocks_all_kinds_up_to_its_own(gate, shut):
    gate.shut(shut, 1.0)

    assert [enters(gate, kind) for kind in KINDS] == [kind > shut for kind in KINDS]

    gate.open()
    assert all(enters(gate, kind) for kind in KINDS)


def test_opening_the_gate_admits_waiting_calls(gate):
    gate.shut(Kind.CHANGES, 1.0)
    entered = threading.Event()

    def change():
        with gate.passing(Kind.CHANGES, Deadline.after(20)):
            entered.set()

    waiting = threading.Thread(target=change)
    waiting.start()
    assert not entered.wait(0.05)
    gate.open()
    assert entered.wait(120)
    waiting.join(10)


def test_shutting_the_gate_waits_for_calls_inside(gate):
    with gate.passing(Kind.CHANGES, Deadline.after(1)):
        with pytest.raises(DeadlineExceeded, match="did not finish"):
            gate.shut(Kind.CHANGES, 0.05)
        # Calls that only read do not delay that.
        assert not enters(gate, Kind.CHANGES)
    with gate.passing(Kind.READS, Deadline.after(1)):
        gate.shut(Kind.CHANGES, 1.0)


def test_surplus_waiters_at_a_shut_gate_are_refused(gate):
    gate.shut(Kind.READS, 1.0)
    waiting = [threading.Thread(target=enters, args=(gate, Kind.READS, 20)) for _ in range(2)]
    for thread in waiting:
        thread.start()
    while gate._waiters < 2:
        threading.Event().wait(0.01)

    assert not enters(gate, Kind.READS, 20)

    gate.open()
    for thread in waiting:
        thread.join(10)


def test_a_closed_gate_refuses_waiting_calls(gate):
    gate.shut(Kind.READS, 1.0)
    gate.close()

    with pytest.raises(Draining), gate.passing(Kind.READS, Deadline.after(20)):
        pass


class Counting:
    counts_uses = True


class Plain:
    counts_uses = False


def test_the_kind_of_a_lookup_follows_from_its_effects():
    assert kind_of_lookup([Plain()], begins=False, peek=False) is Kind.READS
    assert kind_of_lookup([Plain(), Counting()], begins=False, peek=False) is Kind.CHANGES
    assert kind_of_lookup([Counting()], begins=False, peek=True) is Kind.READS
    assert kind_of_lookup([Counting()], begins=True, peek=False) is Kind.BEGINS

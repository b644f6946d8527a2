import threading
import time

import pytest

from gradmesh.trainer.process_group.alarm import DELAY_S, Alarm


@pytest.fixture
def alarm():
    alarm = Alarm()
    yield alarm
    alarm.close()


@pytest.fixture
def rung(alarm):
    """Set once the alarm has woken a thread."""
    rung = threading.Event()

    def listen():
        alarm.wait()
        rung.set()

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    yield rung
    alarm.ring()
    listener.join(5)


def test_it_rings_at_once(alarm, rung):
    alarm.ring()

    assert rung.wait(5)


def test_it_rings_later(alarm, rung):
    alarm.ring_later()

    assert rung.wait(5)


def test_called_off_it_does_not_ring(alarm, rung):
    # Set far more often than one alarm would be missed by chance.
    for _ in range(200):
        alarm.ring_later()
        alarm.call_off()
    time.sleep(20 * DELAY_S)

    assert not rung.is_set()


def test_a_ring_cannot_be_called_off(alarm, rung):
    alarm.ring_later()
    alarm.ring()
    alarm.call_off()

    assert rung.wait(5)


def test_it_can_be_set_again_after_it_rang(alarm):
    for _ in range(3):
        alarm.ring_later()
        alarm.wait()


def test_a_closed_alarm_takes_calls():
    alarm = Alarm()
    alarm.ring_later()
    alarm.close()
    alarm.close()

    alarm.ring()
    alarm.ring_later()
    alarm.call_off()

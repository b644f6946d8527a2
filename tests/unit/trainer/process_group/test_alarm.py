import ctypes
import threading

import pytest

from gradmesh.trainer.process_group import wakeup as module
from gradmesh.trainer.process_group.wakeup import Wakeup


@pytest.fixture
def alarm():
    alarm = Wakeup()
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
    listener.join(20)


def test_it_rings_at_once(alarm, rung):
    alarm.ring()

    assert rung.wait(30)


def test_it_rings_later(alarm, rung):
    alarm.ring_later()

    assert rung.wait(30)


def is_armed(alarm):
    """Tell whether the kernel is going to ring it."""
    left = module._Timer()
    assert module._LIBRARY.timerfd_gettime(alarm._timer, ctypes.byref(left)) == 0
    return bool(left.in_s or left.in_ns)


def test_called_off_it_does_not_ring(alarm, rung, monkeypatch):
    # So late that a slow machine calls it off in time.
    monkeypatch.setattr(module, "_SOON", ctypes.byref(module._Timer(0, 0, 600, 0)))
    alarm.ring_later()
    assert is_armed(alarm)

    alarm.call_off()

    assert not is_armed(alarm)
    assert not rung.is_set()


def test_a_ring_cannot_be_called_off(alarm, rung):
    alarm.ring_later()
    alarm.ring()
    alarm.call_off()

    assert rung.wait(30)


def test_it_can_be_set_again_after_it_rang(alarm):
    for _ in range(3):
        alarm.ring_later()
        alarm.wait()


def test_a_closed_alarm_takes_calls():
    alarm = Wakeup()
    alarm.ring_later()
    alarm.close()
    alarm.close()

    alarm.ring()
    alarm.ring_later()
    alarm.call_off()

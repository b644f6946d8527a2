import ctypes
import threading

import pytest

from gradmesh.trainer.process_group import wakeup as module
from gradmesh.trainer.process_group.wakeup import Wakeup


@pytest.fixture
def wakeup():
    wakeup = Wakeup()
    yield wakeup
    wakeup.close()


@pytest.fixture
def woken(wakeup):
    """Set once the wakeup has woken a thread."""
    woken = threading.Event()

    def listen():
        wakeup.wait()
        woken.set()

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    yield woken
    wakeup.wake()
    listener.join(20)


def test_it_wakes_at_once(wakeup, woken):
    wakeup.wake()

    assert woken.wait(120)


def test_it_wakes_later(wakeup, woken):
    wakeup.wake_later()

    assert woken.wait(120)


def is_armed(wakeup):
    """Return whether the timer is armed."""
    left = module._Timer()
    assert module._LIBRARY.timerfd_gettime(wakeup._timer, ctypes.byref(left)) == 0
    return bool(left.in_s or left.in_ns)


def test_cancelled_it_does_not_wake(wakeup, woken, monkeypatch):
    # So late that a slow machine cancels it in time.
    monkeypatch.setattr(module, "_DELAY", ctypes.byref(module._Timer(0, 0, 600, 0)))
    wakeup.wake_later()
    assert is_armed(wakeup)

    wakeup.cancel()

    assert not is_armed(wakeup)
    assert not woken.is_set()


def test_a_fired_wakeup_cannot_be_cancelled(wakeup, woken):
    wakeup.wake_later()
    wakeup.wake()
    wakeup.cancel()

    assert woken.wait(120)


def test_it_can_be_set_again_after_it_fired(wakeup):
    for _ in range(3):
        wakeup.wake_later()
        wakeup.wait()


def test_a_closed_wakeup_accepts_calls():
    wakeup = Wakeup()
    wakeup.wake_later()
    wakeup.close()
    wakeup.close()

    wakeup.wake()
    wakeup.wake_later()
    wakeup.cancel()

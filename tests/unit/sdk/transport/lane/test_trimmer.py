"""Memory of big frames goes back when none follow."""

import threading
import time

from gradmesh.sdk.transport.lane.trimmer import Trimmer


def test_it_trims_once_after_the_last_big_frame():
    trimmed = threading.Semaphore(0)
    trimmer = Trimmer(trimmed.release, idle_s=0.2)
    begun = time.monotonic()

    for _ in range(5):
        trimmer.note()

    assert trimmed.acquire(timeout=10)
    assert time.monotonic() - begun >= 0.2
    assert not trimmed.acquire(timeout=0.4)
    trimmer.note()
    assert trimmed.acquire(timeout=10)


def test_closed_it_does_nothing_and_leaves_no_thread(own_threads, eventually):
    trimmed = threading.Semaphore(0)
    trimmer = Trimmer(trimmed.release, idle_s=0.2)
    trimmer.note()

    trimmer.close()
    trimmer.note()

    assert not trimmed.acquire(timeout=0.5)
    eventually(lambda: not own_threads.alive())

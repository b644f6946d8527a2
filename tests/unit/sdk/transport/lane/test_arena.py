import os
import threading
import time

import numpy as np
import pytest

from gradmesh.sdk.transport.lane.arena import Arena, IdleTrimmer, map_peer


def test_writes_are_visible_to_the_peer() -> None:
    arena = Arena(1 << 20, shared=True)
    peer = map_peer(arena.fd, 1 << 20)
    arena.close_fd()

    array = arena.empty((3, 4), np.float32)
    array[...] = 7
    arena.place(array)

    np.testing.assert_array_equal(np.ndarray((3, 4), np.float32, peer, 0), 7)
    with pytest.raises(TypeError):
        peer[0] = 1


def test_arrays_begin_at_cache_lines_and_are_reused() -> None:
    arena = Arena(1 << 20, shared=False)
    first = arena.empty((5,), np.int8)
    second = arena.empty((5,), np.int8)
    base = first.__array_interface__["data"][0]

    assert second.__array_interface__["data"][0] - base == 64
    arena.begin()
    assert arena.empty((9,), np.int8).__array_interface__["data"][0] == base


def test_arrays_that_do_not_fit_get_ordinary_memory() -> None:
    arena = Arena(4096, shared=False)

    assert arena.empty((5000,), np.int8).shape == (5000,)
    assert arena.used == 0


@pytest.mark.parametrize("shared", [True, False])
def test_memory_of_large_frames_is_returned(shared: bool) -> None:
    arena = Arena(64 << 20, shared=shared)
    arena.empty((32 << 20,), np.int8)[...] = 1
    arena.begin()

    arena.trim()

    array = arena.empty((32 << 20,), np.int8)
    assert not array.any()


def test_memory_that_could_shrink_is_refused() -> None:
    fd = os.memfd_create("plain")
    os.ftruncate(fd, 4096)

    with pytest.raises(ValueError, match="not sealed"):
        map_peer(fd, 1 << 20)
    os.close(fd)


def test_a_trimmer_runs_once_after_the_last_large_frame(own_threads, eventually):
    trimmed = threading.Semaphore(0)
    trimmer = IdleTrimmer(trimmed.release, idle_s=2.0)
    begun = time.monotonic()

    for _ in range(5):
        trimmer.record()

    assert trimmed.acquire(timeout=120)
    assert time.monotonic() - begun >= 2.0
    # A second trim would need a thread.
    eventually(lambda: not own_threads.alive())
    assert not trimmed.acquire(blocking=False)
    trimmer.record()
    assert trimmed.acquire(timeout=120)


def test_a_closed_trimmer_does_nothing_and_leaves_no_thread(own_threads, eventually):
    trimmed = threading.Semaphore(0)
    trimmer = IdleTrimmer(trimmed.release, idle_s=600)
    trimmer.record()

    trimmer.close()
    trimmer.record()

    eventually(lambda: not own_threads.alive())
    assert not trimmed.acquire(blocking=False)

"""The allocator keeps big buffers, and returns free memory when the process is quiet."""

import platform
import threading
from collections.abc import Callable
from typing import Any

from gradmesh.sdk.process.memory import (
    MemoryTrimmer,
    keep_big_buffers,
    release_free_memory,
    resident_bytes,
)
from tests.own_process import in_own_process as in_own_process


def test_allocator_is_tuned_where_it_is_glibc() -> None:
    assert keep_big_buffers() is (platform.libc_ver()[0] == "glibc")


def _resident_after_release() -> tuple[int, int]:
    keep_big_buffers()
    blocks = [bytes(100_000) for _ in range(1000)]
    del blocks
    before = resident_bytes()
    release_free_memory()
    return before, resident_bytes()


def test_free_memory_returns_to_the_system(in_own_process: Callable[..., Any]) -> None:
    before, after = in_own_process(_resident_after_release)

    assert after < before - 50_000_000


def _releases_of_a_quiet_process() -> tuple[bool, bool]:
    released = threading.Semaphore(0)
    trimmer = MemoryTrimmer(0.05, released.release)
    first = released.acquire(timeout=120)
    blocks, second = [], False
    while not second and len(blocks) < 20:
        blocks.append(b"x" * 50_000_000)  # more than a twentieth of the process
        second = released.acquire(timeout=2)
    trimmer.close()
    trimmer.close()
    return first, second


def test_a_quiet_process_releases_memory_once_it_has_grown(
    in_own_process: Callable[..., Any],
) -> None:
    assert in_own_process(_releases_of_a_quiet_process) == (True, True)

"""A process of its own for what a test measures: memory and descriptors are the process's."""

import multiprocessing
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest


@pytest.fixture(scope="module")
def alone() -> Iterator[Callable[..., Any]]:
    """Call functions of the test's module in a process that does nothing else.

    The process starts with the first call and ends with the module. Measure there, return what
    was measured, and assert in the test.
    """
    process = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))

    def call(function: Callable[..., Any], *arguments: Any) -> Any:
        return process.submit(function, *arguments).result(timeout=50)

    yield call
    # Not joined: a call that took too long may still run, and nobody waits for it.
    for one in list(process._processes.values()):
        one.kill()
    process.shutdown(wait=False, cancel_futures=True)


def peak_bytes(function: Callable[..., object], *arguments: Any) -> int:
    """Return how much memory a call takes at most, beside what was there before it.

    What other threads take meanwhile counts, too: to be called in a process without them.
    """
    tracemalloc.start()
    try:
        function(*arguments)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

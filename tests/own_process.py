"""A separate process for measurements of memory and descriptors, which are per process."""

import multiprocessing
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest


@pytest.fixture(scope="module")
def in_own_process() -> Iterator[Callable[..., Any]]:
    """Call functions of the test's module in a process that runs nothing else.

    The process starts with the first call and ends with the module. Measure there, return the
    measurements, and assert in the test.
    """
    process = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))

    def call(function: Callable[..., Any], *arguments: Any) -> Any:
        return process.submit(function, *arguments).result(timeout=120)

    yield call
    # Not joined: a call that took too long may still run.
    for one in list(process._processes.values()):
        one.kill()
    process.shutdown(wait=False, cancel_futures=True)


def peak_bytes(function: Callable[..., object], *arguments: Any) -> int:
    """Return the peak of memory that a call allocates.

    Allocations of other threads count, too: call it in a process without them.
    """
    tracemalloc.start()
    try:
        function(*arguments)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

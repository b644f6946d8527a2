"""Futures of calls: one thread for all, and only when it is needed."""

import threading

import pytest

from gradmesh.protos.errors import DeadlineExceeded, IdOutOfRange
from gradmesh.sdk.future import Future, FutureResolver, WaitedSource


@pytest.fixture
def resolver(own_threads):
    made = FutureResolver()
    yield made
    made.close()
    assert not own_threads.alive()


def fail():
    raise IdOutOfRange("no such row")


def test_a_caller_waits_without_another_thread(resolver, own_threads):
    future = Future(WaitedSource(lambda: threading.current_thread(), resolver))

    assert future.result() is threading.current_thread()
    assert future.done()
    assert not own_threads.alive()


def test_it_is_finished_once(resolver):
    times = []
    future = Future(WaitedSource(lambda: times.append(1), resolver))

    threads = [threading.Thread(target=future.result) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)

    assert times == [1]


def test_an_error_keeps_its_type(resolver):
    future = Future(WaitedSource(fail, resolver))

    assert isinstance(future.exception(), IdOutOfRange)
    with pytest.raises(IdOutOfRange, match="no such row"):
        future.result()
    assert "failed" in repr(future)


def test_a_short_wait_ends_and_the_next_one_succeeds(resolver):
    go = threading.Event()
    future = Future(WaitedSource(lambda: go.wait(120), resolver))

    with pytest.raises(DeadlineExceeded, match="still under way"):
        future.result(timeout_s=0.01)
    assert not future.done()
    go.set()

    assert future.result(timeout_s=10) is True


def test_callbacks_run_without_a_waiting_caller(resolver):
    results: list = []
    called = threading.Event()
    future = Future(WaitedSource(lambda: 5, resolver))

    future.add_done_callback(lambda f: 1 / 0)
    future.add_done_callback(lambda f: (results.append(f.result()), called.set()))

    assert called.wait(120)
    future.add_done_callback(lambda f: results.append(f.result()))
    assert results == [5, 5]


def test_a_closed_resolver_still_ends_futures():
    resolver = FutureResolver()
    resolver.close()
    future = Future(WaitedSource(lambda: 5, resolver))

    assert future.done()
    assert future.result() == 5

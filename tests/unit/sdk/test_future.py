"""Futures that users make."""

import threading

import pytest

from gradmesh.protos.errors import DeadlineExceeded
from gradmesh.sdk.future import Future, collect_all, wait_all


def test_a_result_arrives_at_all_who_wait() -> None:
    future: Future[int] = Future()
    threading.Timer(0.02, future.set_result, (5,)).start()

    assert future.wait(120) == future.result() == future.value() == 5
    assert future.exception() is None
    assert "done" in repr(future)


def test_waiting_ends_at_its_limit() -> None:
    with pytest.raises(DeadlineExceeded, match=r"within 0\.01 s"):
        Future().wait(0.01)
    with pytest.raises(RuntimeError, match="not done yet"):
        Future().value()


def test_an_exception_is_raised_each_time() -> None:
    future: Future[int] = Future()
    future.set_exception(KeyError("x"))

    for _ in range(2):
        with pytest.raises(KeyError):
            future.wait()
    with pytest.raises(TypeError, match="expected an exception"):
        Future().set_exception("text")  # type: ignore[arg-type]


def test_followers_run_once_in_order() -> None:
    future: Future[int] = Future()
    called: list[int] = []
    for n in range(3):
        future.add_done_callback(lambda done, n=n: called.append(n))  # type: ignore[misc]
    future.set_result(1)
    future.add_done_callback(lambda done: called.append(9))

    assert called == [0, 1, 2, 9]


def test_a_callback_may_wait_for_its_own_future() -> None:
    future: Future[int] = Future()
    followed = future.then(lambda done: done.wait() + done.wait())
    future.set_result(2)

    assert followed.wait() == 4


def test_collections() -> None:
    futures: list[Future[int]] = [Future() for _ in range(3)]
    together = collect_all(futures)
    for n, future in enumerate(futures):
        assert not together.done()
        future.set_result(n)

    assert [future.value() for future in together.wait()] == [0, 1, 2]
    assert collect_all([]).wait() == []
    assert wait_all(futures) == [0, 1, 2]


def test_all_end_before_the_first_error_is_raised() -> None:
    bad: Future[int] = Future()
    bad.set_exception(ValueError("first"))
    late: Future[int] = Future()
    threading.Timer(0.05, late.set_result, (1,)).start()

    with pytest.raises(ValueError, match="first"):
        wait_all([bad, late])
    assert late.done()

"""How callers share the threads of a server."""

import threading
from collections.abc import Iterator

import pytest

from gradmesh.sdk.transport.call import UNRESTRICTED, Caller
from gradmesh.sdk.transport.call_pool import CallPool, share_of

TRAINER, READER = Caller("trainer"), Caller("reader")


class Calls:
    """Calls that wait until they are released; counts those that run."""

    def __init__(self, pool: CallPool) -> None:
        self.pool = pool
        self.free = threading.Event()
        self.running: list[str] = []
        self._entered = threading.Semaphore(0)

    def start(self, caller: Caller) -> bool:
        if not self.pool.take(caller):
            return False
        self.pool.submit(self._run, caller.role)
        return True

    def _run(self, role: str) -> None:
        self.running.append(role)
        self._entered.release()
        self.free.wait(120)

    def await_running(self, count: int) -> None:
        for _ in range(count):
            assert self._entered.acquire(timeout=120)

    def none_begins(self) -> bool:
        return not self._entered.acquire(blocking=False)


@pytest.fixture
def calls() -> Iterator[Calls]:
    pool = CallPool(4, "test", queue=8)
    calls = Calls(pool)
    yield calls
    calls.free.set()
    pool.shutdown(wait=True)


@pytest.mark.parametrize(("threads", "share"), [(1, 1), (2, 2), (3, 2), (4, 3), (16, 14), (32, 28)])
def test_a_share_is_more_than_the_calls_that_may_wait(threads: int, share: int) -> None:
    assert share_of(threads) == share
    assert share > threads // 2


def test_a_caller_beyond_its_share_waits_and_others_do_not(calls: Calls) -> None:
    for _ in range(5):
        assert calls.start(TRAINER)
    calls.await_running(3)
    assert calls.none_begins()

    assert calls.start(READER)

    calls.await_running(1)
    assert calls.running == ["trainer"] * 3 + ["reader"]
    calls.free.set()
    calls.await_running(2)


def test_without_authentication_all_threads_are_for_everyone(calls: Calls) -> None:
    for _ in range(4):
        assert calls.start(UNRESTRICTED)

    calls.await_running(4)


def test_callers_and_all_together_have_a_bound(calls: Calls) -> None:
    # The share of three, and half of the eight places that wait.
    assert [calls.start(TRAINER) for _ in range(8)] == [True] * 7 + [False]
    assert [calls.start(READER) for _ in range(6)] == [True] * 5 + [False]

    calls.free.set()
    calls.await_running(12)
    assert calls.start(TRAINER)


def test_members_of_one_role_are_callers_of_their_own(calls: Calls) -> None:
    one, other = Caller("trainer", "trainer-0", 1), Caller("trainer", "trainer-1", 1)
    assert [calls.start(one) for _ in range(4)] == [True] * 4
    calls.await_running(3)

    assert calls.start(other)

    calls.await_running(1)


def test_calls_that_wait_at_the_end_are_dropped(calls: Calls) -> None:
    for _ in range(5):
        assert calls.start(TRAINER)
    calls.await_running(3)

    calls.pool.shutdown(wait=False, cancel_futures=True)
    calls.free.set()

    calls.pool.shutdown(wait=True)
    assert calls.running == ["trainer"] * 3

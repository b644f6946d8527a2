"""The thread pool: urgent tasks run at once, patient ones are queued, idle threads end."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gradmesh.protos.errors import Overloaded
from gradmesh.sdk.rpc.threads import ThreadPool


@pytest.fixture
def make() -> Iterator[Callable[..., ThreadPool]]:
    made: list[ThreadPool] = []

    def make(**options: Any) -> ThreadPool:
        made.append(ThreadPool("test-run", **options))
        return made[-1]

    yield make
    for threads in made:
        threads.close()
        assert threads.counts()[0] == 0


def test_patient_tasks_are_queued(make: Callable[..., ThreadPool]) -> None:
    threads, free, done = make(max_queued=2), threading.Event(), threading.Semaphore(0)
    running: list[int] = []

    def task() -> None:
        running.append(1)
        free.wait(120)
        done.release()

    for _ in range(6):
        threads.enqueue(task)
    urgent = threading.Event()
    threads.run(urgent.set)

    assert urgent.wait(120)
    assert len(running) <= 2
    free.set()
    assert all(done.acquire(timeout=120) for _ in range(6))


def test_urgent_tasks_run_all_at_once(make: Callable[..., ThreadPool]) -> None:
    threads, meeting = make(max_queued=1), threading.Barrier(20)
    done = threading.Semaphore(0)

    def task() -> None:
        meeting.wait(120)
        done.release()

    for _ in range(20):
        threads.run(task)

    assert all(done.acquire(timeout=120) for _ in range(20))


def test_too_many_are_refused(make: Callable[..., ThreadPool]) -> None:
    threads, free = make(most=2), threading.Event()
    for _ in range(2):
        threads.run(lambda: free.wait(120))

    with pytest.raises(Overloaded, match="2 calls run at once already"):
        threads.run(lambda: None)
    free.set()


def test_idle_threads_end_and_are_reused_before(
    make: Callable[..., ThreadPool], eventually: Callable[..., None]
) -> None:
    threads = make(idle_s=0.2)
    for _ in range(10):
        done = threading.Event()
        threads.run(done.set)
        assert done.wait(120)
    assert threads.counts()[0] <= 2

    eventually(lambda: threads.counts()[0] == 0)


def test_surplus_threads_of_a_burst_end_under_continued_calls(
    make: Callable[..., ThreadPool], eventually: Callable[..., None]
) -> None:
    threads, meeting = make(idle_s=0.5), threading.Barrier(21)
    for _ in range(20):
        threads.run(lambda: meeting.wait(120))
    meeting.wait(120)

    def one_more_call_and_few_threads() -> bool:
        done = threading.Event()
        threads.run(done.set)
        assert done.wait(120)
        return threads.counts()[0] <= 2

    eventually(one_more_call_and_few_threads)


def test_a_failing_task_does_not_affect_others(make: Callable[..., ThreadPool]) -> None:
    threads, done = make(), threading.Event()

    threads.run(lambda: 1 / 0)
    threads.run(done.set)

    assert done.wait(120)

import threading
import time

import pytest

from gradmesh.trainer.errors import GroupAborted, GroupClosed
from gradmesh.trainer.process_group.abort_signal import AbortSignal
from gradmesh.trainer.process_group.work_queue import WorkQueue


@pytest.fixture
def abort_signal():
    abort_signal = AbortSignal()
    yield abort_signal
    abort_signal.close()


@pytest.fixture
def ended():
    return threading.Event()


@pytest.fixture
def works(abort_signal, ended):
    works = WorkQueue("queue-test", 5, abort_signal, ended.set)
    yield works
    works.abort(GroupClosed("over"))
    works.join(20)


def nothing(_):
    """A job that is done at once."""


def test_jobs_run_in_order(works):
    seen = []

    submitted = [works.submit("job", lambda _, i=i: seen.append(i)) for i in range(100)]
    submitted[-1].wait(120)

    assert seen == list(range(100))
    assert all(work.is_done() for work in submitted)


def test_failing_job_ends_those_behind_it_and_later_calls(works, ended):
    gate = threading.Event()

    def fail(_):
        gate.wait(120)
        raise ConnectionError("broken")

    first, second = works.submit("first", fail), works.submit("second", nothing)
    gate.set()

    for work in (first, second):
        with pytest.raises(ConnectionError, match="broken"):
            work.wait(120)
        assert isinstance(work.exception(), ConnectionError)
    assert ended.wait(120)
    with pytest.raises(ConnectionError, match="broken"):
        works.submit("third", nothing)


def test_a_job_runs_without_a_waiting_caller(works):
    ran = threading.Event()

    works.submit("job", lambda _: ran.set())

    assert ran.wait(120)


def test_the_waiting_thread_runs_the_job(works):
    where = []

    # The queue's thread may run the job first on a slow machine, but not every time.
    for _ in range(100):
        works.submit("job", lambda _: where.append(threading.current_thread())).wait()

    assert threading.current_thread() in where


def test_a_job_gets_the_deadline_of_the_queue(works):
    deadlines = []

    works.submit("job", deadlines.append).wait()

    assert 0 < deadlines[0] - time.monotonic() <= 5


def test_a_begun_job_ends_in_the_waiting_thread(works):
    ends = []

    work = works.submit("job", nothing, lambda: ends.append)

    assert not ends
    work.wait()
    assert len(ends) == 1


def test_end_wakes_an_idle_queue(works, ended):
    works.abort(GroupAborted("stop"))

    assert ended.wait(120)
    with pytest.raises(GroupAborted):
        works.submit("late", nothing)


def test_first_reason_is_kept(works, abort_signal):
    works.abort(GroupAborted("stop"))
    works.abort(GroupClosed("over"))

    assert isinstance(abort_signal.error, GroupAborted)


def test_no_work_is_left_pending_when_submits_race_with_the_end(abort_signal, ended):
    works = WorkQueue("queue-race", 5, abort_signal, ended.set)
    submitted = []

    def submit():
        try:
            while True:
                submitted.append(works.submit("job", nothing))
        except GroupAborted:
            return

    threads = [threading.Thread(target=submit) for _ in range(3)]
    for thread in threads:
        thread.start()
    works.abort(GroupAborted("stop"))
    for thread in threads:
        thread.join(20)
    works.join(20)

    assert all(work.is_done() for work in submitted)

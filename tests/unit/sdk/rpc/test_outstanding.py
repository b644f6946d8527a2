"""Calls under way: a worker is idle when they have ended and their callbacks have run."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from gradmesh.protos.errors import Cancelled, DeadlineExceeded, Overloaded
from gradmesh.sdk.future import Future
from gradmesh.sdk.rpc.ids import WorkerId
from gradmesh.sdk.rpc.outstanding import OutstandingCalls
from gradmesh.sdk.rpc.reply import Reply
from gradmesh.sdk.rpc.rpc_call import RpcCall
from gradmesh.sdk.rpc.threads import ThreadPool
from gradmesh.sdk.transport.deadline import Deadline


class Scheduled:
    """A thread pool whose tasks the test runs in any order."""

    def __init__(self) -> None:
        self.tasks: list[Callable[[], object]] = []
        self.full = False

    def run(self, task: Callable[[], object]) -> None:
        if self.full:
            raise Overloaded("full")
        self.tasks.append(task)


class Answer:
    """A response that arrives when the test sends it."""

    answered = False
    doorbell = None

    def __init__(self) -> None:
        self._waiting: list[Callable[[], None]] = []

    def on_answer(self, function: Callable[[], None]) -> bool:
        self._waiting.append(function)
        return True

    def come(self) -> None:
        for function in self._waiting:
            function()

    def result(self) -> Any:
        raise DeadlineExceeded("no answer in time")


class Peers:
    def suspect(self, worker: str) -> None:
        raise AssertionError(worker)


@pytest.fixture
def threads() -> Scheduled:
    return Scheduled()


@pytest.fixture
def outstanding(threads: Scheduled) -> OutstandingCalls:
    return OutstandingCalls(WorkerId("me", 1), Peers(), threads)  # type: ignore[arg-type]


@pytest.fixture
def answer() -> Answer:
    return Answer()


@pytest.fixture
def call(outstanding: OutstandingCalls, answer: Answer) -> RpcCall[Any]:
    call: RpcCall[Any] = outstanding.begin(
        "other", "f", Deadline.after(20), lambda reply: reply, lambda answered: None
    )
    call.sent(answer)  # type: ignore[arg-type]
    return call


def is_idle(outstanding: OutstandingCalls) -> bool:
    return outstanding.wait_idle(Deadline.after(0))


def test_a_callback_whose_thread_comes_last_is_waited_for(
    outstanding: OutstandingCalls, threads: Scheduled, call: RpcCall[Any], answer: Answer
) -> None:
    future: Future[Any] = Future(call)
    idle_inside: list[bool] = []
    future.add_done_callback(lambda done: idle_inside.append(is_idle(outstanding)))
    call.keep()  # as `drain` does
    answer.come()
    of_callback, of_keeping = threads.tasks

    of_keeping()
    assert len(outstanding) == 0
    assert not is_idle(outstanding)
    of_callback()

    assert idle_inside == [True]  # a callback that ends the worker does not wait for itself
    assert is_idle(outstanding)


def test_callbacks_that_find_no_thread_are_not_waited_for(
    outstanding: OutstandingCalls, threads: Scheduled, call: RpcCall[Any], answer: Answer
) -> None:
    Future(call).add_done_callback(lambda done: None)
    threads.full = True
    with pytest.raises(Overloaded):
        answer.come()
    threads.full = False

    call.end()

    assert is_idle(outstanding)


def test_a_call_that_finds_no_thread_is_kept_later(
    outstanding: OutstandingCalls, threads: Scheduled, call: RpcCall[Any], answer: Answer
) -> None:
    class Lane(Answer):
        """A connection without callbacks: a thread must wait for the answer."""

        def on_answer(self, function: Callable[[], None]) -> bool:
            return False

    call.sent(Lane())  # type: ignore[arg-type]
    threads.full = True
    call.keep()
    assert not call.is_kept
    threads.full = False

    assert not outstanding.drain(Deadline.after(0))
    assert call.is_kept
    (of_keeping,) = threads.tasks
    of_keeping()
    assert outstanding.drain(Deadline.after(0))


def test_callbacks_without_a_free_thread_run_on_the_receiving_thread(
    outstanding: OutstandingCalls, threads: Scheduled, call: RpcCall[Any], answer: Answer
) -> None:
    called: list[int] = []
    for number in range(2):
        call.notify(lambda number=number: called.append(number))  # type: ignore[misc]
    call._pending = None  # the response said that the answer comes later
    answer.come()
    while threads.tasks:
        threads.tasks.pop(0)()
    threads.full = True

    call.fail(DeadlineExceeded("no answer in time"))
    call.end()

    assert called == [0, 1]
    assert is_idle(outstanding)


def test_slow_reads_end_by_the_deadline() -> None:
    go_on = threading.Event()
    pool = ThreadPool("test")
    outstanding = OutstandingCalls(WorkerId("me", 1), Peers(), pool)  # type: ignore[arg-type]
    future: Future[bool] = Future(
        outstanding.begin(
            "other",
            "f",
            Deadline.after(60),
            lambda reply: go_on.wait(120),
            lambda answered: None,
        )
    )
    call: Any = future._source
    call.sent(Answer())
    call._pending = None
    call.deliver(Reply())

    assert not outstanding.drain(Deadline.after(0.1))
    go_on.set()
    assert outstanding.drain(Deadline.after(30))
    assert future.result() is True
    pool.close()


def test_outstanding_calls_are_named(
    outstanding: OutstandingCalls, call: RpcCall[Any], answer: Answer
) -> None:
    assert outstanding.under_way().startswith("1 calls have no answer yet (f on other);")
    for _ in range(5):
        outstanding.begin("more", "g", Deadline.after(20), lambda reply: reply, lambda _: None)
    assert "(f on other, g on more, g on more, g on more, g on more, ...)" in (
        outstanding.under_way()
    )


def test_a_running_callback_is_counted_as_outstanding(
    outstanding: OutstandingCalls, threads: Scheduled, call: RpcCall[Any], answer: Answer
) -> None:
    Future(call).add_done_callback(lambda done: None)
    call.keep()
    answer.come()
    of_callback, of_keeping = threads.tasks
    of_keeping()

    assert outstanding.under_way().startswith("callbacks of futures have not ended")
    of_callback()


class Interrupted(Answer):
    """A response for which the user stops waiting."""

    def result(self) -> Any:
        raise KeyboardInterrupt


def test_an_interrupted_wait_holds_up_neither_callbacks_nor_the_end(
    outstanding: OutstandingCalls, threads: Scheduled, call: RpcCall[Any]
) -> None:
    answer = Interrupted()
    call.sent(answer)  # type: ignore[arg-type]
    future: Future[Any] = Future(call)
    called: list[BaseException | None] = []
    future.add_done_callback(lambda done: called.append(done.exception()))

    with pytest.raises(KeyboardInterrupt):
        future.wait()
    answer.come()
    while threads.tasks:
        threads.tasks.pop(0)()

    assert outstanding.drain(Deadline.after(0))
    assert [type(error) for error in called] == [Cancelled]
    with pytest.raises(Cancelled, match="f on other"):
        future.wait()


def test_a_delivery_can_be_waited_for_again_after_an_interruption(
    outstanding: OutstandingCalls, call: RpcCall[Any]
) -> None:
    class Event(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            raise KeyboardInterrupt

    call._pending = None  # the response said that the answer comes later
    call._arrived = Event()
    future: Future[Any] = Future(call)
    with pytest.raises(KeyboardInterrupt):
        future.wait()
    assert len(outstanding) == 1

    call.deliver(Reply())

    assert isinstance(future.wait(), Reply)
    assert len(outstanding) == 0

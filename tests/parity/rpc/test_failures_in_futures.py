"""Failures on the way to a worker are in the future; usage errors raise at once."""

import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from rpc_functions import Point, add, echo

import gradmesh as gm
from gradmesh.protos import errors
from gradmesh.sdk.process.network import TransportConfig
from gradmesh.sdk.rpc.agent import Agent
from gradmesh.sdk.rpc.shutdown import close

SPENT_S = 1e-9


@pytest.fixture(params=["shm", "tcp", "stream", "unary"])
def caller(request: pytest.FixtureRequest, make_agent: Callable[..., Agent], as_agent: Any) -> Any:
    agent = make_agent(
        f"caller-{request.param}", rank=30, transport=TransportConfig(lane=request.param)
    )
    with as_agent(agent):
        yield agent


def test_a_deadline_that_is_spent(caller: Agent) -> None:
    point = gm.remote("worker-0", Point, (3,))
    assert point.rpc_sync().get() == 3
    futures = [
        gm.rpc_async("worker-0", add, (1, 1), timeout_s=SPENT_S),
        gm.rpc_async(0, add, (1, 1), timeout_s=SPENT_S),
        gm.rpc_async(caller.name, add, (1, 1), timeout_s=SPENT_S),
        point.rpc_async(timeout_s=SPENT_S).get(),
        gm.remote("worker-0", Point, (3,)).remote_type(timeout_s=SPENT_S),
        gm.remote("worker-0", Point, (3,)).rpc_async(timeout_s=SPENT_S).get(),
    ]

    for future in futures:
        with pytest.raises(errors.DeadlineExceeded):
            future.wait()
    late = gm.remote("worker-0", add, (1, 1), timeout_s=SPENT_S)
    with pytest.raises((errors.RefNotFound, errors.DeadlineExceeded)):
        late.to_here()
    with pytest.raises(errors.DeadlineExceeded):
        gm.rpc_sync("worker-0", add, (1, 1), timeout_s=SPENT_S)
    assert gm.rpc_sync("worker-0", add, (1, 1)) == 2


def test_a_block_waits_for_the_others_first(caller: Agent) -> None:
    futures: list[gm.Future[Any]] = []

    def block() -> None:
        with gm.rpc.call_group() as collected:
            gm.rpc_async("worker-0", add, (1, 1), timeout_s=SPENT_S)
            gm.rpc_async("worker-1", add, (1, 1))
            futures.extend(collected)

    with pytest.raises(errors.DeadlineExceeded):
        block()
    assert futures[1].value() == 2


def test_calls_to_a_closed_worker_fail_in_their_futures(
    caller: Agent, make_agent: Callable[..., Agent], eventually: Any
) -> None:
    gone = make_agent("soon-gone", rank=31)
    assert gm.rpc_sync("soon-gone", add, (1, 1)) == 2
    kept = gm.remote("soon-gone", Point, (3,))
    assert kept.rpc_sync().get() == 3
    info = gm.rpc.get_worker_info("soon-gone")
    close(gone, graceful=False)

    def ask() -> list[BaseException | None]:
        futures = [
            gm.rpc_async("soon-gone", add, (1, 1)),
            gm.rpc_async(info, add, (1, 1)),
            gm.rpc_async(31, add, (1, 1)),
            kept.rpc_async().get(),
        ]
        return [future.exception() for future in futures]

    eventually(lambda: all(isinstance(e, errors.WorkerNotFound) for e in ask()), 20)


def test_a_coordinator_that_does_not_answer(caller: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    def refresh(deadline: Any) -> Any:
        raise errors.Unreachable("injected")

    monkeypatch.setattr(caller.directory, "refresh", refresh)

    with pytest.raises(errors.Unreachable, match="injected"):
        gm.rpc_async(77, add, (1, 1)).wait()
    caller.directory.suspect("worker-0")
    with pytest.raises(errors.Unreachable, match="injected"):
        gm.rpc_async("worker-0", add, (1, 1)).wait()
    rref = gm.remote("worker-0", add, (1, 1))
    with pytest.raises((errors.RefNotFound, errors.Unreachable), match="injected"):
        rref.to_here()
    to_self = gm.remote(caller.name, add, (1, 1))
    assert to_self.to_here() == 2
    monkeypatch.undo()
    assert gm.rpc_sync("worker-0", add, (1, 1)) == 2


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: gm.rpc_async("nobody", add, (1, 1)), errors.WorkerNotFound),
        (lambda: gm.rpc_async(77, add, (1, 1)), errors.WorkerNotFound),
        (lambda: gm.rpc_async(2.5, add, (1, 1)), ValueError),  # type: ignore[arg-type]
        (lambda: gm.rpc_async("worker-0", add, (1, object())), errors.InvalidRequest),
        (lambda: gm.rpc_async("worker-0", add, (1, 1), timeout_s=-2), errors.InvalidRequest),
        (lambda: gm.rpc_async("worker-0", lambda: 1), errors.InvalidRequest),
        (lambda: gm.remote("worker-0", add, (object(),)), errors.InvalidRequest),
    ],
)
def test_mistakes_are_raised_at_once(call: Callable[[], object], error: type[Exception]) -> None:
    with pytest.raises(error):
        call()


def test_a_creation_that_failed_is_the_future_s_whenever_it_was_noticed(
    caller: Agent, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    rref = failed_creation(caller, monkeypatch)
    eventually(lambda: rref._used.confirmed.done())

    for future in (rref.remote_type(), rref.rpc_async().get()):
        with pytest.raises(errors.RefNotFound, match="injected"):
            future.wait()


def failed_creation(caller: Agent, monkeypatch: pytest.MonkeyPatch, *args: Any) -> Any:
    """Return a reference whose creation did not reach its owner."""

    def refresh(deadline: Any) -> Any:
        raise errors.Unreachable("injected")

    with monkeypatch.context() as patch:
        patch.setattr(caller.directory, "refresh", refresh)
        caller.directory.suspect("worker-0")
        rref = gm.remote("worker-0", echo, args or (1,))
    caller.directory.refresh(caller.caller.deadline(10))
    return rref


def test_a_creation_that_failed_keeps_nothing(
    caller: Agent, monkeypatch: pytest.MonkeyPatch, eventually: Any
) -> None:
    def use() -> list[Any]:
        argument = gm.remote("worker-1", Point, (3,))
        assert argument.rpc_sync().get() == 3
        rref = failed_creation(caller, monkeypatch, argument)
        return [weakref.ref(argument), weakref.ref(rref)]

    kept = use()

    # Without the garbage collector: owners are notified of deletions at once.
    eventually(lambda: all(ref() is None for ref in kept))
    eventually(lambda: len(caller.rrefs.users) == 0)


def test_a_refused_creation_on_this_worker_leaves_nothing(caller: Agent) -> None:
    with pytest.raises(errors.InvalidRequest):
        gm.remote(caller.name, add, (object(),))

    assert len(caller.rrefs.owners) == 0


def test_callbacks_end_before_the_worker_does(make_agent: Callable[..., Agent]) -> None:
    """A method called by `rpc_async` on a fresh reference is two calls, the second a callback."""
    agent = make_agent("patient")
    begun, go_on = threading.Event(), threading.Event()
    results: list[Any] = []

    def call_again(done: gm.Future[Any]) -> None:
        begun.set()
        go_on.wait(120)
        results.append(agent.caller.call("worker-0", "rpc_functions.add", (2, 2), {}, None).wait())

    agent.caller.call("worker-0", "rpc_functions.add", (1, 1), {}, None).add_done_callback(
        call_again
    )
    assert begun.wait(120)
    ending = threading.Thread(target=close, args=(agent,), kwargs={"timeout_s": 20})
    ending.start()
    # It waits for the callback: without one it would end at once.
    ending.join(0.5)
    assert ending.is_alive()
    assert not agent.closed
    go_on.set()
    ending.join(20)

    assert agent.closed
    assert results == [4]

"""A network that loses and delays messages: repeatable messages arrive, others raise."""

import gc
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from rpc_async_functions import own_future
from rpc_functions import add, describe, echo, fetch

import gradmesh as gm
from gradmesh.protos import errors
from gradmesh.sdk.process.network import TransportConfig
from gradmesh.sdk.rpc.agent import Agent
from gradmesh.sdk.transport.channel import Channel


class Lost(grpc.RpcError):
    """gRPC's error for a broken connection."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "injected"

    def trailing_metadata(self) -> tuple[()]:
        return ()


class FaultyAnswer:
    """A call that is lost or delayed."""

    def __init__(
        self, send: Callable[[], Any] | None, delay_s: float, timeout_s: float = 0.0
    ) -> None:
        self._until = time.monotonic() + timeout_s
        self._ready = threading.Event()
        self._callbacks: list[Callable[[Any], None]] = []
        self._inner: Any = None
        if send is None:
            self._ready.set()
            return

        def go() -> None:
            self._inner = send()
            for callback in self._callbacks:
                self._inner.add_done_callback(callback)
            self._ready.set()

        timer = threading.Timer(delay_s, go)
        timer.daemon = True
        timer.start()

    def result(self, timeout: float) -> Any:
        if self._ready.is_set() and self._inner is None:
            raise Lost
        end = min(time.monotonic() + timeout, self._until)
        if not self._ready.wait(end - time.monotonic()):
            raise grpc.FutureTimeoutError
        return self._inner.result(max(0.0, end - time.monotonic()))

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        if not self._ready.is_set():
            self._callbacks.append(callback)
            # gRPC ends a call at its deadline by itself.
            late = threading.Timer(max(0.0, self._until - time.monotonic()), callback, (self,))
            late.daemon = True
            late.start()
        elif self._inner is None:
            callback(self)
        else:
            self._inner.add_done_callback(callback)

    def cancel(self) -> None:
        pass


class Faults:
    """The faults of the messages of one agent, by rpc."""

    def __init__(self) -> None:
        self.lose: Counter[str] = Counter()
        self.delay: dict[str, float] = {}
        self.lost: Counter[str] = Counter()

    def spoil(self, channel: Channel) -> Channel:
        attempt = channel.attempt

        def faulty(method: Any, data: bytes, timeout_s: float) -> Any:
            if self.lose[method.name] > 0:
                self.lose[method.name] -= 1
                self.lost[method.name] += 1
                return FaultyAnswer(None, 0)
            if method.name in self.delay:
                return FaultyAnswer(
                    lambda: attempt(method, data, max(0.01, timeout_s)),
                    self.delay[method.name],
                    timeout_s,
                )
            return attempt(method, data, timeout_s)

        channel.attempt = faulty  # type: ignore[method-assign]
        return channel


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
def faulty(make_agent: Callable[..., Agent], as_agent: Any, faults: Faults) -> Iterator[Agent]:
    agent = make_agent(
        "faulty", transport=TransportConfig(lane="unary"), limits=gm.Limits(threads=4)
    )
    dial = agent.directory._dial
    agent.directory._dial = lambda address, name: faults.spoil(dial(address, name))
    with as_agent(agent):
        yield agent


def test_check_failed_messages(faulty: Agent, faults: Faults, eventually: Any) -> None:
    for name in ("CreateRef", "FetchRef", "ForkRef", "DeleteRef", "AcceptFork", "DescribeRef"):
        faults.lose[name] = 3
    inner = gm.rpc_sync("worker-0", "rpc_functions.make_remote", ("worker-1", 2, 3))
    rref = gm.remote("worker-0", add, (1, 1))

    assert rref.to_here() == 2
    assert inner.to_here() == 5
    assert inner.confirmed_by_owner()
    assert gm.rpc_sync("worker-2", describe, (rref,)) == (True, False, "worker-0")
    del rref, inner
    gc.collect()  # the errors that were overcome hold the frames they came through
    eventually(lambda: faults.lost["DeleteRef"] == 3)
    eventually(lambda: len(faulty.rrefs.users) == 0)
    assert faults.lost["ForkRef"] == 3
    assert faults.lost["CreateRef"] == 3


def test_a_call_that_is_lost_is_not_made_again(faulty: Agent, faults: Faults) -> None:
    faults.lose["Call"] = 1

    with pytest.raises(errors.Unreachable, match="injected"):
        gm.rpc_sync("worker-0", add, (1, 1))
    assert gm.rpc_sync("worker-0", add, (1, 1)) == 2


def test_remote_message_dropped(faulty: Agent, faults: Faults, eventually: Any) -> None:
    faults.lose["CreateRef"] = 10**6

    rref = gm.remote("worker-0", add, (1, 1), timeout_s=0.5)
    assert rref._used is not None
    eventually(rref._used.confirmed.done)

    with pytest.raises(errors.RefNotFound, match="creation failed"):
        gm.rpc_sync("worker-1", fetch, (rref,))
    with pytest.raises(errors.RefNotFound, match="creation failed"):
        rref.to_here()
    faults.lose.clear()


def test_remote_message_dropped_to_self(faulty: Agent, faults: Faults, eventually: Any) -> None:
    faults.lose["CreateRef"] = 10**6

    rref = gm.remote("faulty", add, (1, 1), timeout_s=0.5)

    with pytest.raises(errors.MeshError):
        rref.to_here(timeout_s=10)
    faults.lose.clear()


def test_remote_message_delay_timeout(faulty: Agent, faults: Faults, eventually: Any) -> None:
    faults.delay["CreateRef"] = 2.0

    rref = gm.remote("worker-3", echo, (1,), timeout_s=0.2)
    blocked = gm.remote("worker-3", echo, (2,), timeout_s=20)
    with pytest.raises(errors.DeadlineExceeded):
        blocked.to_here(timeout_s=0.1)
    assert rref._used is not None
    eventually(rref._used.confirmed.done)

    with pytest.raises(errors.RefNotFound, match="creation failed, or may have"):
        rref.to_here()
    assert blocked.to_here() == 2


def test_delayed_fetches_and_calls(faulty: Agent, faults: Faults) -> None:
    rref = gm.remote("worker-0", add, (1, 1))
    assert rref.to_here() == 2
    faults.delay |= {"FetchRef": 1.0, "Call": 1.0}

    with pytest.raises(errors.DeadlineExceeded):
        rref.to_here(timeout_s=0.1)
    with pytest.raises(errors.DeadlineExceeded):
        gm.rpc_sync("worker-0", add, (1, 1), timeout_s=0.1)
    assert rref.to_here() == 2
    assert gm.rpc_sync("worker-0", add, (1, 1), timeout_s=math.inf) == 2


def test_answers_that_come_later_survive_lost_messages(faulty: Agent, faults: Faults) -> None:
    faults.lose["CheckCalls"] = 3

    futures = [gm.rpc_async("worker-0", own_future, (1.5, n)) for n in range(5)]

    assert [future.wait() for future in futures] == list(range(5))


def test_deliveries_are_repeated(
    make_agent: Callable[..., Agent], as_agent: Any, faults: Faults
) -> None:
    giver = make_agent("giver", transport=TransportConfig(lane="unary"))
    dial = giver.directory._dial
    giver.directory._dial = lambda address, name: faults.spoil(dial(address, name))
    faults.lose["Deliver"] = 3

    assert gm.rpc_sync("giver", own_future, (0.05, 7)) == 7
    assert faults.lost["Deliver"] == 3

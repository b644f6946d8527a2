"""Calls over a connection that breaks: sent again where that is safe, never past the deadline."""

import threading
import time
from typing import Any

import pytest

from gradmesh.protos import errors
from gradmesh.protos.frame import Frame
from gradmesh.protos.method import methods_of
from gradmesh.protos.owner.v1 import owner_pb2
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.sdk.transport.pending_call import may_repeat
from gradmesh.sdk.transport.policy import RetryPolicy

METHODS = methods_of(owner_pb2.DESCRIPTOR.services_by_name["OwnerService"])


def start(channel: Any, name: str, timeout_s: float) -> Any:
    request = METHODS[name].request_type()
    body = Frame(request) if name == "Call" else request
    return channel.start(METHODS[name], body, Deadline.after(timeout_s))


class FirstHangs:
    """A behaviour whose first call ends only with the test."""

    def __init__(self, response: Any) -> None:
        self.entered = threading.Event()
        self.free = threading.Event()
        self._response = response

    def __call__(self, request: Any, call: Any) -> Any:
        if not self.entered.is_set():
            self.entered.set()
            self.free.wait(120)
        return self._response


@pytest.fixture
def hanging(script: Any) -> Any:
    made = {
        "describe": FirstHangs(owner_pb2.DescribeResponse(name="again")),
        "call": FirstHangs(Frame(owner_pb2.CallResponse())),
    }
    script.behaviours.update(made)
    yield made
    for behaviour in made.values():
        behaviour.free.set()


def test_a_repeatable_call_survives_a_reset(
    serve: Any, dial: Any, fault_proxy: Any, script: Any, hanging: Any
) -> None:
    proxy = fault_proxy(serve().address)
    call = start(dial(proxy.address), "Describe", 20)
    assert hanging["describe"].entered.wait(120)

    proxy.reset()

    assert call.result().name == "again"
    assert script.calls["describe"] == 2


def test_a_call_that_is_not_repeatable_is_sent_once(
    serve: Any, dial: Any, fault_proxy: Any, script: Any, hanging: Any
) -> None:
    proxy = fault_proxy(serve().address)
    call = start(dial(proxy.address, lane="unary"), "Call", 20)
    assert hanging["call"].entered.wait(120)

    proxy.reset()

    with pytest.raises(errors.Unreachable, match=r"ps-0 at 127\.0\.0\.1"):
        call.result()
    assert script.calls["call"] == 1


def test_a_typed_refusal_lets_any_call_go_again(serve: Any, dial: Any, script: Any) -> None:
    answers = iter([errors.ShardNotReady("wait"), Frame(owner_pb2.CallResponse())])

    def behave(request: Any, call: Any) -> Any:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    script.behaviours["call"] = behave

    start(dial(serve().address), "Call", 20).result()

    assert script.calls["call"] == 2


def test_a_worker_that_returns_is_found(
    serve: Any, dial: Any, fault_proxy: Any, describe: Any
) -> None:
    proxy = fault_proxy(serve().address)
    channel = dial(proxy.address)
    assert describe(channel).name == "here"
    proxy.refuse()
    before = proxy.accepted

    call = start(channel, "Describe", 20)
    waiter = threading.Thread(target=lambda: _until(lambda: proxy.accepted > before, proxy.allow))
    waiter.start()

    assert call.result().name == "here"
    waiter.join(10)


def _until(condition: Any, then: Any) -> None:
    limit = Deadline.after(10)
    while not condition() and not limit.passed:
        threading.Event().wait(0.01)
    then()


def test_attempts_end_at_the_deadline(serve: Any, dial: Any, fault_proxy: Any) -> None:
    proxy = fault_proxy(serve().address)
    proxy.refuse()
    begun = time.monotonic()

    # The last attempt may still be connecting when the time is over.
    with pytest.raises((errors.Unreachable, errors.DeadlineExceeded)):
        start(dial(proxy.address), "Describe", 3).result()

    assert time.monotonic() - begun < 10
    assert proxy.accepted >= 2


def test_a_port_without_a_listener_is_unreachable(dial: Any, describe: Any) -> None:
    with pytest.raises(errors.Unreachable, match=r"coordinator at 127\.0\.0\.1:1, Describe"):
        describe(dial("127.0.0.1:1", worker="coordinator", patience_s=0))


def test_a_stalled_connection_ends_at_the_deadline(
    serve: Any, dial: Any, fault_proxy: Any, describe: Any
) -> None:
    proxy = fault_proxy(serve().address)
    channel = dial(proxy.address)
    describe(channel)
    proxy.stall()
    begun = time.monotonic()

    with pytest.raises(errors.DeadlineExceeded):
        start(channel, "Describe", 0.5).result()

    assert 0.4 < time.monotonic() - begun < 10


def test_patience_can_end_before_the_deadline(serve: Any, dial: Any, fault_proxy: Any) -> None:
    proxy = fault_proxy(serve().address)
    proxy.refuse()
    begun = time.monotonic()

    with pytest.raises(errors.Unreachable):
        start(dial(proxy.address, patience_s=0.3), "Describe", 30).result()

    assert 0.1 < time.monotonic() - begun < 10


def test_pauses_grow_up_to_a_limit() -> None:
    pauses = RetryPolicy(first_s=0.1, factor=2, max_s=0.5, jitter=0).pauses()

    assert [round(next(pauses), 3) for _ in range(5)] == [0.1, 0.2, 0.4, 0.5, 0.5]


def test_jitter_only_shortens_a_pause() -> None:
    policy = RetryPolicy(first_s=0.1, jitter=0.5)

    firsts = [next(policy.pauses()) for _ in range(200)]

    assert 0.05 <= min(firsts) < max(firsts) <= 0.1


@pytest.mark.parametrize("cls", errors.CATALOGUE.values(), ids=lambda cls: cls.__name__)
def test_repeatable_errors(cls: type[errors.MeshError]) -> None:
    error = cls("text")
    passing = cls.retry is errors.Retry.CALL

    assert may_repeat(METHODS["Describe"], error) is passing
    assert may_repeat(METHODS["Call"], error) is (passing and cls is not errors.Unreachable)

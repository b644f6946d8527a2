"""Deadlines, cancellation, closing and metrics of calls."""

import threading
import time
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from gradmesh.protos import errors
from gradmesh.protos.method import methods_of
from gradmesh.protos.owner.v1 import owner_pb2
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.sdk.transport.metrics import RpcMetrics

METHODS = methods_of(owner_pb2.DESCRIPTOR.services_by_name["OwnerService"])
RPC = "/gradmesh.owner.v1.OwnerService/Describe"


class Blocker:
    """A behaviour that signals its entry and returns when released."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.free = threading.Event()

    def __call__(self, request: Any, call: Any) -> owner_pb2.DescribeResponse:
        self.entered.release()
        self.free.wait(120)
        return owner_pb2.DescribeResponse(name="late")


@pytest.fixture
def blocker(script: Any) -> Any:
    blocker = script.behaviours["describe"] = Blocker()
    yield blocker
    blocker.free.set()


def start(channel: Any, timeout_s: float) -> Any:
    return channel.start(
        METHODS["Describe"], owner_pb2.DescribeRequest(), Deadline.after(timeout_s)
    )


def test_a_call_ends_at_its_deadline(serve: Any, dial: Any, blocker: Blocker) -> None:
    channel = dial(serve().address)
    begun = time.monotonic()

    with pytest.raises(errors.DeadlineExceeded, match=r"ps-0 at .*, Describe: .*raise the timeout"):
        start(channel, 0.3).result()

    assert 0.25 < time.monotonic() - begun < 10


def test_a_deadline_that_has_passed_sends_nothing(serve: Any, dial: Any, script: Any) -> None:
    channel = dial(serve().address)

    with pytest.raises(errors.DeadlineExceeded):
        start(channel, 0).result()

    assert script.calls["describe"] == 0


def test_the_handler_gets_the_deadline_of_the_caller(
    serve: Any, dial: Any, describe: Any, script: Any
) -> None:
    seen: list[Any] = []

    def behave(request: Any, call: Any) -> owner_pb2.DescribeResponse:
        seen.append((call.deadline.remaining_s(), call.peer))
        return owner_pb2.DescribeResponse()

    script.behaviours["describe"] = behave
    describe(dial(serve().address), timeout_s=7)

    ((remaining_s, peer),) = seen
    assert 5 < remaining_s <= 7.1
    assert peer.startswith("ipv4:127.0.0.1:")


def test_calls_to_several_workers_run_at_once(serve: Any, dial: Any, blocker: Blocker) -> None:
    channels = [dial(serve().address) for _ in range(3)]

    pending = [start(channel, 20) for channel in channels]

    assert all(blocker.entered.acquire(timeout=120) for _ in channels)
    blocker.free.set()
    assert [call.result().name for call in pending] == ["late"] * 3


def test_a_cancelled_call_ends_and_is_not_sent_again(
    serve: Any, dial: Any, script: Any, blocker: Blocker
) -> None:
    call = start(dial(serve().address), 20)
    assert blocker.entered.acquire(timeout=120)

    call.cancel()

    with pytest.raises(errors.Cancelled, match="cancelled by the caller"):
        call.result()
    assert script.calls["describe"] == 1


def test_a_call_can_be_cancelled_between_two_attempts(serve: Any, dial: Any, script: Any) -> None:
    refused = threading.Event()

    def refuse(request: Any, call: Any) -> None:
        refused.set()
        raise errors.StepPending("not yet")

    script.behaviours["describe"] = refuse
    call = start(dial(serve().address), 30)
    outcome: list[BaseException] = []

    def wait() -> None:
        try:
            call.result()
        except errors.MeshError as error:
            outcome.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert refused.wait(120)
    call.cancel()
    waiter.join(10)

    assert [type(error) for error in outcome] == [errors.Cancelled]


def test_a_closed_channel_ends_its_calls(serve: Any, dial: Any, blocker: Blocker) -> None:
    channel = dial(serve().address)
    call = start(channel, 20)
    assert blocker.entered.acquire(timeout=120)

    channel.close()
    channel.close()

    with pytest.raises(errors.Unreachable, match="closed"):
        call.result()
    with pytest.raises(errors.Unreachable, match="closed"):
        start(channel, 20)


def test_calls_are_counted_on_both_ends(serve: Any, dial: Any, describe: Any, script: Any) -> None:
    served, made = CollectorRegistry(), CollectorRegistry()
    channel = dial(serve(registry=served).address, metrics=RpcMetrics("client", made))

    describe(channel)
    script.behaviours["describe"] = lambda request, call: 1 / 0
    with pytest.raises(errors.InternalError):
        describe(channel)

    for side, registry in (("server", served), ("client", made)):
        for status in ("OK", "INTERNAL"):
            labels = {"rpc": RPC, "status": status, "lane": "unary"}
            assert registry.get_sample_value(f"gradmesh_rpc_{side}_calls_total", labels) == 1
        assert registry.get_sample_value(f"gradmesh_rpc_{side}_seconds_count", {"rpc": RPC}) == 2
    sent = {"rpc": RPC, "direction": "sent"}
    assert served.get_sample_value("gradmesh_rpc_server_bytes_total", sent) == 6
    assert channel.bytes_moved == 6

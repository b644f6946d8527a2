"""Listening, health and the end of a server."""

import socket
import threading
import time
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gradmesh.protos import errors
from gradmesh.protos.frame import Frame
from gradmesh.protos.method import methods_of
from gradmesh.protos.owner.v1 import owner_pb2
from gradmesh.sdk.process.setting import AddressInUse
from gradmesh.sdk.transport.deadline import Deadline

METHODS = methods_of(owner_pb2.DESCRIPTOR.services_by_name["OwnerService"])
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Underway:
    """A call that a server is busy with until `free` is set."""

    def __init__(self, script: Any) -> None:
        self.entered, self.free = threading.Event(), threading.Event()
        script.behaviours["call"] = self._behave

    def _behave(self, request: Any, call: Any) -> Any:
        self.entered.set()
        self.free.wait(120)
        return Frame(owner_pb2.CallResponse(), [np.arange(100_000)])

    def begin(self, channel: Any) -> Any:
        call = channel.start(METHODS["Call"], Frame(owner_pb2.CallRequest()), Deadline.after(20))
        assert self.entered.wait(120)
        return call


@pytest.fixture
def under_way(script: Any) -> Any:
    under_way = Underway(script)
    yield under_way
    under_way.free.set()


@pytest.fixture
def health() -> Any:
    channels: list[grpc.Channel] = []

    def connect(address: str) -> Any:
        channels.append(grpc.insecure_channel(address))
        return health_pb2_grpc.HealthStub(channels[-1])

    yield connect
    for channel in channels:
        channel.close()


def check(stub: Any) -> Any:
    return stub.Check(health_pb2.HealthCheckRequest(), timeout=120).status


def drain(server: Any, grace_s: float) -> threading.Thread:
    thread = threading.Thread(target=server.drain, args=(grace_s,))
    thread.start()
    return thread


def wait_until(condition: Any) -> None:
    limit = Deadline.after(10)
    while not condition():
        assert not limit.passed
        threading.Event().wait(0.01)


def test_a_port_in_use_is_named(serve: Any) -> None:
    address = serve().address

    with pytest.raises(AddressInUse, match=f"cannot listen on '{address}': .*port 0 takes a free"):
        serve(listen=address)


def test_a_port_that_another_program_holds_is_named(serve: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held, pytest.raises(AddressInUse):
        serve(listen=f"127.0.0.1:{held.getsockname()[1]}")


def test_health_is_reported_from_start_to_drain(
    serve: Any, dial: Any, health: Any, under_way: Underway
) -> None:
    server = serve()
    stub = health(server.address)
    call = under_way.begin(dial(server.address))
    assert check(stub) == SERVING

    drained = drain(server, 20)
    wait_until(lambda: check(stub) == NOT_SERVING)
    under_way.free.set()
    call.result()
    drained.join(10)

    with pytest.raises(grpc.RpcError):
        check(stub)


def test_watchers_of_health_are_notified_of_the_drain_and_do_not_delay_it(
    serve: Any, health: Any
) -> None:
    server = serve()
    watch = health(server.address).Watch(health_pb2.HealthCheckRequest(), timeout=120)
    assert next(watch).status == SERVING
    begun = time.monotonic()

    drained = drain(server, 15)

    assert next(watch).status == NOT_SERVING
    drained.join(10)
    assert time.monotonic() - begun < 10


def test_drain_lets_calls_under_way_finish_and_refuses_new_ones(
    serve: Any, dial: Any, describe: Any, health: Any, under_way: Underway
) -> None:
    server = serve()
    channel = dial(server.address)
    call = under_way.begin(channel)
    drained = drain(server, 20)
    wait_until(lambda: check(health(server.address)) == NOT_SERVING)

    with pytest.raises(errors.DeadlineExceeded, match="accepts no new calls") as info:
        describe(channel, timeout_s=2.0)
    under_way.free.set()

    assert type(info.value.__cause__) is errors.Draining
    assert call.result().arrays[0].shape == (100_000,)
    drained.join(10)
    assert not drained.is_alive()


def test_drain_ends_although_a_call_does_not(serve: Any, dial: Any, under_way: Underway) -> None:
    server = serve()
    call = under_way.begin(dial(server.address))
    begun = time.monotonic()

    server.drain(0.3)

    assert time.monotonic() - begun < 10
    with pytest.raises(errors.Unreachable):
        call.result()


def test_drain_of_an_idle_server_is_quick(serve: Any) -> None:
    server = serve()
    begun = time.monotonic()

    server.drain(30)

    assert time.monotonic() - begun < 10

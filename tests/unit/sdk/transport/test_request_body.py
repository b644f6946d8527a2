"""Requests that arrive, that do not, and that never will."""

import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from gradmesh.protos.errors import InvalidRequest
from gradmesh.sdk.transport.request_body import BodyReader, ClientGone, end_late_call
from gradmesh.sdk.transport.watchdog import Watchdog


class StalledCall:
    """A call whose request does not arrive; it ends when it is cancelled."""

    def __init__(self) -> None:
        self.awaited = threading.Event()
        self.cancelled = threading.Event()

    def peer(self) -> str:
        return "test"

    def cancel(self) -> None:
        self.cancelled.set()

    def __iter__(self) -> Iterator[bytes]:
        self.awaited.set()
        assert self.cancelled.wait(120)
        raise grpc.RpcError
        yield b""


@pytest.fixture
def watchdog() -> Iterator["Watchdog[Any]"]:
    watchdog: Watchdog[Any] = Watchdog(end_late_call, "test-watch")
    yield watchdog
    watchdog.close()


def read(reader: BodyReader, call: StalledCall) -> threading.Thread:
    """Read in a thread; it ends when the call is cancelled."""

    def run() -> None:
        with pytest.raises(ClientGone):
            reader.read(iter(call), call)  # type: ignore[arg-type]

    thread = threading.Thread(target=run)
    thread.start()
    assert call.awaited.wait(120)
    return thread


def test_a_request_is_returned(watchdog: "Watchdog[Any]") -> None:
    call: Any = StalledCall()

    assert BodyReader(watchdog, 30).read(iter([b"one", b"two"]), call) == b"one"
    assert not call.cancelled.is_set()


def test_a_call_without_a_request_is_an_error(watchdog: "Watchdog[Any]") -> None:
    call: Any = StalledCall()

    with pytest.raises(InvalidRequest, match="exactly one message"):
        BodyReader(watchdog, 30).read(iter([]), call)


def test_a_request_that_does_not_arrive_ends_the_call(watchdog: "Watchdog[Any]") -> None:
    read(BodyReader(watchdog, 0.05), StalledCall()).join(30)


def test_of_too_many_that_wait_the_oldest_are_hurried(watchdog: "Watchdog[Any]") -> None:
    reader = BodyReader(watchdog, 60, most=2, hurried_s=0.05)
    calls = [StalledCall() for _ in range(5)]
    threads = []
    for number, call in enumerate(calls):
        threads.append(read(reader, call))
        if number >= 2:
            assert calls[number - 2].cancelled.wait(120)

    assert [call.cancelled.is_set() for call in calls] == [True] * 3 + [False] * 2
    for call in calls:
        call.cancel()
    for thread in threads:
        thread.join(30)

"""Which calls get which threads, and what happens to responses that nobody reads."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gradmesh.protos.errors import LaneUnavailable
from gradmesh.protos.rpcs import RESERVED
from gradmesh.sdk.transport import server_threads
from gradmesh.sdk.transport.call import UNRESTRICTED, Caller
from gradmesh.sdk.transport.lane.grpc_stream import EXCHANGE
from gradmesh.sdk.transport.server_threads import ServerThreads

NAMED = Caller("trainer", "trainer-0", 1)
UNNAMED = Caller("trainer")
LEASE = f"/{min(RESERVED)}"


class SlowReader:
    """A call whose client does not read the response."""

    def __init__(self) -> None:
        self.ends: list[Callable[[], object]] = []
        self.cancelled = False

    def peer(self) -> str:
        return "test"

    def cancel(self) -> None:
        self.cancelled = True
        for end in self.ends:
            end()

    def add_callback(self, end: Callable[[], object]) -> bool:
        self.ends.append(end)
        return True


@pytest.fixture
def threads() -> Iterator[ServerThreads]:
    threads = ServerThreads(4, 2, 1 << 20)
    yield threads
    threads.close()


def test_leases_and_streams_have_pools_of_their_own(threads: ServerThreads) -> None:
    pools = {threads.take(path, UNRESTRICTED).pool for path in ("/other", LEASE, EXCHANGE.path)}

    assert len(pools) == 3


def test_streams_beyond_the_limit_are_refused_instead_of_queued(threads: ServerThreads) -> None:
    for _ in range(2):
        threads.take(EXCHANGE.path, UNRESTRICTED)

    with pytest.raises(LaneUnavailable, match="max_lanes"):
        threads.take(EXCHANGE.path, UNRESTRICTED)


@pytest.mark.parametrize(("caller", "served"), [(UNRESTRICTED, 20), (UNNAMED, 12), (NAMED, 12)])
def test_a_member_and_the_strangers_of_a_role_have_a_share_of_the_threads_for_leases(
    threads: ServerThreads, caller: Caller, served: int
) -> None:
    free, entered = threading.Event(), threading.Semaphore(0)

    def call() -> None:
        entered.release()
        free.wait(120)

    for _ in range(20):
        threads.take(LEASE, caller).pool.submit(call)
    for _ in range(served):
        assert entered.acquire(timeout=120)

    assert not entered.acquire(blocking=False)
    free.set()


def test_a_large_response_that_is_not_read_is_dropped(
    threads: ServerThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_threads, "body_limit_s", lambda size: 0.02)
    small: Any = SlowReader()
    large: Any = SlowReader()
    done = threading.Event()
    large.ends.append(done.set)

    threads.limit_response(small, 10)
    threads.limit_response(large, 2 << 20)

    assert done.wait(120)
    assert not small.cancelled

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.protos.errors import DeadlineExceeded, StaleShardMap, Unreachable
from gradmesh.sdk.cluster.servers import ParameterServers
from gradmesh.sdk.transport.channel import Channel
from gradmesh.sdk.transport.deadline import Deadline


class Directory:
    """Serves shard maps as a coordinator does, a newer one for each fetch."""

    def __init__(self):
        self.epoch = 0
        self.open = threading.Event()
        self.open.set()

    def get_shard_map(self, deadline):
        if not self.open.wait(deadline.remaining_s()):
            raise DeadlineExceeded("waited in vain")
        self.epoch += 1
        address = f"127.0.0.1:{self.epoch}"
        shard = table_pb2.Shard(name="ps-0", address=address, incarnation=self.epoch)
        return table_pb2.ShardMap(epoch=self.epoch, shards=[shard], bucket_shards=[0] * 4096)


@pytest.fixture
def servers():
    made = ParameterServers(Directory(), Channel)
    yield made
    made.close()


def soon(timeout_s=20.0):
    return Deadline.after(timeout_s)


def test_the_map_is_fetched_once(servers):
    assert servers.held_map() is None

    first, again = servers.shard_map(soon()), servers.shard_map(soon())

    assert first is again is servers.held_map()


def test_a_channel_lasts_as_long_as_its_server(servers):
    first = servers.shard_map(soon())
    channel = servers.channel(first, 0)
    again = servers.channel(first, 0)

    moved = servers.channel(servers.refresh(soon()), 0)

    assert channel is again
    assert (channel.address, moved.address) == ("127.0.0.1:1", "127.0.0.1:2")


@pytest.mark.parametrize("error", [StaleShardMap, Unreachable])
def test_a_call_that_fails_with_an_old_map_is_repeated_with_a_new_one(servers, error):
    seen = []

    def attempt(shards):
        seen.append(shards.epoch)
        if shards.epoch < 3:
            raise error("moved")
        return "done"

    assert servers.with_map(attempt, soon()) == "done"
    assert seen == [1, 2, 3]


def test_repeated_failures_back_off_until_the_deadline(servers, monkeypatch):
    now, seen = [0.0], []

    def sleep(seconds):
        now[0] += seconds

    monkeypatch.setattr("gradmesh.sdk.cluster.servers.time", SimpleNamespace(sleep=sleep))

    def attempt(shards):
        seen.append(shards.epoch)
        raise StaleShardMap("moved")

    with pytest.raises(StaleShardMap):
        servers.with_map(attempt, Deadline.after(0.5, lambda: now[0]))

    assert now[0] <= 0.5
    assert 2 <= len(seen) < 10


def test_other_failures_are_not_repeated(servers):
    def attempt(shards):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        servers.with_map(attempt, soon())

    assert servers.shard_map(soon()).epoch == 1


def test_callers_do_not_wait_for_another_fetch_past_their_deadline(servers):
    directory = servers._coordinator
    directory.open.clear()

    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(servers.refresh, soon())
        with pytest.raises(DeadlineExceeded):
            servers.refresh(soon(0.1))
        directory.open.set()

    assert slow.result(timeout=120).epoch == 1


def test_a_closed_mesh_opens_no_channels(servers):
    shards = servers.shard_map(soon())
    servers.close()
    servers.close()

    with pytest.raises(Unreachable, match="ps-0: this mesh is closed; connect again"):
        servers.channel(shards, 0)

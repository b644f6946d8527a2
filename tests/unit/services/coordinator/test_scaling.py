import numpy as np
import pytest

from gradmesh.protos.errors import ShardNotReady
from gradmesh.services.coordinator.scaling import Shards


def names(shards):
    return [shard.name for shard in shards.map.shards]


def test_the_map_comes_with_the_last_server(say):
    shards = Shards(2)

    early = shards.refresh([say.member("ps-10")])
    with pytest.raises(ShardNotReady, match="1 of 2 parameter servers have joined: ps-10; start"):
        shards.current([say.member("ps-10")])
    whole = shards.refresh([say.member("ps-10"), say.member("ps-9")])

    assert (early, whole) == (False, True)
    assert names(shards) == ["ps-9", "ps-10"]
    assert shards.map.epoch == 1
    assert np.bincount(shards.map.bucket_shards).tolist() == [2048, 2048]


@pytest.mark.parametrize(("incarnation", "address"), [(2, "h:1"), (1, "h:2")])
def test_a_server_that_changes_makes_a_new_epoch(say, incarnation, address):
    shards = Shards(1)
    shards.refresh([say.member("ps-0")])

    same = shards.refresh([say.member("ps-0")])
    changed = shards.refresh([say.member("ps-0", incarnation, address)])

    assert (same, changed, shards.map.epoch) == (False, True, 2)


def test_live_servers_keep_their_shards(say):
    shards = Shards(2)
    shards.refresh([say.member("ps-1"), say.member("ps-2")])

    more = shards.refresh([say.member(f"ps-{i}") for i in (0, 1, 2)])
    gap = shards.refresh([say.member("ps-0"), say.member("ps-2")])

    assert (more, gap) == (False, True)
    assert names(shards) == ["ps-0", "ps-2"]


def test_a_map_with_a_server_missing_is_not_given_out(say):
    shards = Shards(2)
    shards.refresh([say.member("ps-0"), say.member("ps-1")])

    with pytest.raises(ShardNotReady):
        shards.current([say.member("ps-0"), say.member("ps-7")])


def test_a_restored_map_continues_with_its_epoch(say):
    before = Shards(2)
    before.refresh([say.member("ps-0"), say.member("ps-1")])
    shards = Shards(2, before.map.SerializeToString())

    unchanged = shards.refresh([say.member("ps-0"), say.member("ps-1")])
    changed = shards.refresh([say.member("ps-0"), say.member("ps-1", 2)])

    assert (unchanged, changed, shards.map.epoch) == (False, True, 2)


def test_memory_for_another_number_of_servers_is_not_given_out(say):
    before = Shards(1)
    before.refresh([say.member("ps-0")])
    shards = Shards(2, before.map.SerializeToString())

    with pytest.raises(ShardNotReady):
        shards.current([say.member("ps-0")])
    shards.refresh([say.member("ps-0"), say.member("ps-1")])

    assert len(shards.current([say.member("ps-0"), say.member("ps-1")]).shards) == 2
    assert shards.map.epoch == 2

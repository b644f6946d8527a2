"""Rows on disk with a hot set in memory equal a table in memory."""

import numpy as np
import pytest

from gradmesh.engine import optim
from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.protos.errors import InvalidRequest, StoreFull
from gradmesh.protos.sharding import BUCKETS
from gradmesh.sdk.table.spec import least_max_bytes

DIM = 4
ADAGRAD_ROW = 2 * DIM * 4


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("rows", [None, 5000], ids=["hash", "dense"])
def test_a_tiered_table_equals_one_in_memory(make_shards, tmp_path, rows, servers):
    def make(**fields):
        return make_shards(servers, rows=rows, dim=DIM, optimizer=optim.Adagrad(lr=0.1), **fields)

    # Capacity for about fifty rows per server.
    tiered = make(hot_bytes=150 * 60, home={"ssd_path": tmp_path})
    plain = make()
    rng = np.random.default_rng(0)

    for step in range(1, 30):
        ids = rng.permutation(5000)[: rng.integers(1, 400)]
        np.testing.assert_array_equal(tiered.read(ids), plain.read(ids))
        grads = rng.standard_normal((ids.size, DIM), np.float32)
        tiered.push(ids, grads, step)
        plain.push(ids, grads, step)

    assert tiered.rows() == plain.rows()
    assert all(shard.file_bytes > 0 for shard in tiered.shards)
    assert list(tmp_path.iterdir()) == []


def test_eviction_and_reset_reach_the_disk(make_shards, tmp_path):
    fields = {
        "eviction": table_pb2.Recipe(name="lru"),
        "max_bytes": least_max_bytes(ADAGRAD_ROW),
        "dim": DIM,
        "optimizer": optim.Adagrad(lr=0.1),
    }
    tiered = make_shards(hot_bytes=150 * 60, home={"ssd_path": tmp_path}, **fields)
    plain = make_shards(**fields)
    rng = np.random.default_rng(1)

    for cycle in range(2):
        for step in range(1, 8):
            ids = rng.integers(-(10**12), 10**12, 3000)
            grads = rng.standard_normal((ids.size, DIM), np.float32)
            tiered.push(ids, grads, step)
            plain.push(ids, grads, step)
        assert tiered.rows() == plain.rows()
        assert tiered.shards[0].evicted == plain.shards[0].evicted > 0
        assert tiered.shards[0].row_count <= BUCKETS
        if cycle == 0:
            tiered.shards[0].reset()
            plain.shards[0].reset()
            assert tiered.rows() == {}


def test_memory_is_the_hot_set_and_the_index(make_shards, tmp_path):
    shards = make_shards(dim=256, hot_bytes=1 << 20, home={"ssd_path": tmp_path})
    for part in np.array_split(np.arange(20_000), 10):
        shards.read(part)

    held = shards.shards[0].bytes

    assert held < (1 << 20) + 20_000 * 60 + 600_000
    assert shards.shards[0].file_bytes >= 20_000 * 1024


def test_a_tiered_table_needs_a_folder(make_shards):
    with pytest.raises(InvalidRequest, match="ssd_path"):
        make_shards(hot_bytes=1 << 20)


def test_a_file_that_may_not_grow_is_full(make_shards, tmp_path):
    home = {"ssd_path": tmp_path, "max_ssd_bytes": 1000 * 16}
    shards = make_shards(hot_bytes=1 << 16, home=home)
    shards.read(np.arange(1000))

    with pytest.raises(StoreFull, match="max_ssd_bytes"):
        shards.read(np.arange(1000, 1100))

    with pytest.raises(StoreFull, match="max_ssd_bytes"):
        make_shards(rows=2000, hot_bytes=1 << 16, home=home)

"""What tables say they take is what the process takes."""

import gc

import numpy as np
import psutil
import pytest

from gradmesh.engine import optim
from gradmesh.protos.errors import StoreFull
from gradmesh.services.parameter_server.table import Budget

ROWS = 1_000_000


@pytest.mark.parametrize("rows", [None, ROWS], ids=["hash", "dense"])
def test_a_million_rows_take_what_the_arithmetic_says(make_shards, rows):
    make_shards(rows=rows, dim=64, optimizer=optim.RowwiseAdagrad()).read(np.arange(10))
    gc.collect()
    before = psutil.Process().memory_info().rss
    shards = make_shards(rows=rows, dim=64, optimizer=optim.RowwiseAdagrad())
    table = shards.shards[0]
    for part in np.array_split(np.arange(ROWS), 400):
        table.read(table.slots_of(part))

    taken = psutil.Process().memory_info().rss - before

    assert table.row_count == ROWS
    assert table.expected_row_bytes == pytest.approx(260 + (20 if rows is None else 0), abs=0.2)
    assert table.bytes <= 1.15 * ROWS * table.expected_row_bytes
    assert taken == pytest.approx(table.bytes, rel=0.08)


@pytest.mark.parametrize("count", [1, 5])
def test_a_shard_of_a_dense_table_has_a_small_index(make_shards, count):
    shards = make_shards(count, rows=ROWS, dim=16)

    for shard in shards.shards:
        assert shard.bytes <= 1.03 * shard.row_count * 16 * 4
    assert sum(shard.row_count for shard in shards.shards) == ROWS


def test_a_dense_table_that_does_not_fit_takes_nothing(make_shards):
    budget = Budget(1_000_000)

    with pytest.raises(StoreFull, match="max_store_bytes"):
        make_shards(rows=10**9, dim=64, home={"budget": budget})

    assert budget.taken == 0
    make_shards(rows=1000, dim=64, home={"budget": budget})
    assert budget.taken == pytest.approx(1000 * 256, rel=0.01)


def test_a_reset_gives_memory_back(make_shards):
    shards = make_shards(dim=64)
    shards.read(np.arange(200_000))
    before = psutil.Process().memory_info().rss

    shards.shards[0].reset()

    assert before - psutil.Process().memory_info().rss > 40_000_000

"""The reported memory of tables equals the memory of the process."""

import numpy as np
import psutil
import pytest

from gradmesh.engine import optim
from gradmesh.protos.errors import StoreFull
from gradmesh.services.parameter_server.table import Budget
from tests.unit.services.parameter_server.table.conftest import build_shards

ROWS = 1_000_000


def resident():
    return psutil.Process().memory_info().rss


def fill(rows):
    """Return the reported memory of a table of a million rows, and the growth of the process."""
    build_shards(rows=rows, dim=64, optimizer=optim.RowwiseAdagrad()).read(np.arange(10))
    before = resident()
    table = build_shards(rows=rows, dim=64, optimizer=optim.RowwiseAdagrad()).shards[0]
    for part in np.array_split(np.arange(ROWS), 400):
        table.read(table.slots_of(part))
    return table.row_count, table.expected_row_bytes, table.bytes, resident() - before


@pytest.mark.parametrize("rows", [None, ROWS], ids=["hash", "dense"])
def test_a_million_rows_take_the_computed_memory(in_own_process, rows):
    row_count, expected_row_bytes, held, taken = in_own_process(fill, rows)

    assert row_count == ROWS
    assert expected_row_bytes == pytest.approx(260 + (20 if rows is None else 0), abs=0.2)
    assert held <= 1.15 * ROWS * expected_row_bytes
    assert taken == pytest.approx(held, rel=0.08)


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


def freed_by_reset():
    shards = build_shards(dim=64)
    shards.read(np.arange(200_000))
    before = resident()
    shards.shards[0].reset()
    return before - resident()


def test_a_reset_gives_memory_back(in_own_process):
    assert in_own_process(freed_by_reset) > 40_000_000

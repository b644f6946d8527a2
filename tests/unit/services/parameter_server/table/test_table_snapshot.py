"""A consistent cut equals the table at its moment under concurrent changes."""

import itertools
import threading
import time

import numpy as np
import pytest

from gradmesh.engine.optim import SGD, Adagrad, RowwiseAdagrad
from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.protos.errors import BaseLost, InvalidRequest, ShardNotReady, SnapshotLost
from gradmesh.services.parameter_server.table import Budget

TTL = table_pb2.Recipe(name="ttl", settings={"steps": 5.0})
KINDS = {
    "dense": {"rows": 300},
    "hash": {},
    "lru": {"eviction": table_pb2.Recipe(name="lru"), "max_bytes": 4096 * 200},
    "lfu": {"eviction": table_pb2.Recipe(name="lfu"), "max_bytes": 4096 * 200},
    "ttl": {"eviction": TTL},
    "frequency": {"admission": table_pb2.Recipe(name="frequency", settings={"count": 2.0})},
}


def copy_of(shard, name="other"):
    """The state at this moment, without any change in between."""
    shard.freeze(name, "")
    found = collect(shard, name)
    shard.changes.thaw(name, False)
    return found


def collect(shard, name, between=lambda: None):
    rows, alive, memory = {}, {}, {}
    for piece in itertools.count():
        block = shard.changes.read(name, piece)
        if block is None:
            return rows, alive, memory
        if "buckets" in block:
            memory = {n: a.tobytes() for n, a in block.items()}
        for i, id_ in enumerate(block.get("ids", ())):
            assert id_ not in rows
            rows[int(id_)] = {n: a[i].tobytes() for n, a in block.items() if n[:5] != "alive"}
        for i, id_ in enumerate(block.get("alive", ())):
            alive[int(id_)] = block["alive_marks"][i]
        if piece % 37 == 0:
            between()


def churn(shards, rng, top=300):
    ids = np.unique(rng.integers(0, top, 20))
    if rng.random() < 0.5:
        shards.read(ids)
    else:
        shards.push(ids, rng.normal(size=(ids.size, 4)).astype(np.float32))


@pytest.mark.parametrize("kind", KINDS)
def test_cut_equals_the_moment_while_rows_change(make_shards, kind):
    shards = make_shards(1, optimizer=Adagrad(lr=0.1), **KINDS[kind])
    (shard,) = shards.shards
    rng = np.random.default_rng(1)
    for _ in range(40):
        churn(shards, rng)
    before = copy_of(shard)

    shard.freeze("cut", "")
    churn(shards, rng)
    during = collect(shard, "cut", between=lambda: churn(shards, rng))

    assert len(before[0]) > 20
    assert during == before
    shard.changes.thaw("cut", False)
    assert copy_of(shard) != before


@pytest.mark.parametrize("kind", KINDS)
def test_cut_equals_the_moment_while_threads_change_rows(make_shards, kind):
    shards = make_shards(1, optimizer=Adagrad(lr=0.1), **KINDS[kind])
    (shard,) = shards.shards
    for seed in range(40):
        churn(shards, np.random.default_rng(seed))
    before = copy_of(shard)
    ended, failures, changes = threading.Event(), [], itertools.count()

    def change(seed):
        rng = np.random.default_rng(seed)
        try:
            while not ended.is_set():
                churn(shards, rng)
                next(changes)
        except Exception as error:
            failures.append(error)

    def let_them():
        seen, until = next(changes), time.monotonic() + 5
        while next(changes) < seen + 10 and time.monotonic() < until and not failures:
            time.sleep(0)

    shard.freeze("cut", "")
    threads = [threading.Thread(target=change, args=(seed,)) for seed in (101, 102)]
    for thread in threads:
        thread.start()
    try:
        during = collect(shard, "cut", between=let_them)
    finally:
        ended.set()
        for thread in threads:
            thread.join(10)

    assert failures == []
    assert during == before


@pytest.mark.parametrize("rows", [300, None])
def test_cut_of_rows_on_disk_equals_the_moment(make_shards, tmp_path, rows):
    shards = make_shards(
        1, rows=rows, optimizer=Adagrad(lr=0.1), hot_bytes=4000, home={"ssd_path": tmp_path}
    )
    (shard,) = shards.shards
    rng = np.random.default_rng(4)
    for _ in range(40):
        churn(shards, rng)
    before = copy_of(shard)

    shard.freeze("cut", "")
    during = collect(shard, "cut", between=lambda: churn(shards, rng))

    assert len(before[0]) > 100
    assert during == before


@pytest.mark.parametrize("kind", KINDS)
def test_base_and_what_changed_make_the_whole(make_shards, kind):
    shards = make_shards(1, optimizer=RowwiseAdagrad(lr=0.1), **KINDS[kind])
    (shard,) = shards.shards
    rng = np.random.default_rng(2)
    for _ in range(20):
        churn(shards, rng)
    shard.freeze("base", "")
    churn(shards, rng)
    rows = collect(shard, "base", between=lambda: churn(shards, rng))[0]
    shard.changes.thaw("base", True)
    for _ in range(3):
        churn(shards, rng)
    whole = copy_of(shard)[0]

    shard.freeze("next", "base")
    changed, alive, _ = collect(shard, "next", between=lambda: churn(shards, rng))

    if alive:
        rows = {id_: row for id_, row in rows.items() if id_ in alive}
    rows |= changed
    for id_, mark in alive.items():
        rows[id_]["marks"] = mark.tobytes()
    assert rows == whole
    assert kind != "dense" or len(changed) < len(whole)


def test_second_snapshot_waits_and_a_strange_base_is_refused(make_shards):
    (shard,) = make_shards(1, rows=10).shards
    shard.freeze("one", "")

    with pytest.raises(ShardNotReady, match="another checkpoint"):
        shard.freeze("two", "")
    shard.changes.thaw("one", False)
    with pytest.raises(BaseLost, match="make a full checkpoint"):
        shard.freeze("two", "one")


def test_reset_loses_the_cut(make_shards):
    (shard,) = make_shards(1, rows=10).shards
    shard.freeze("one", "")

    shard.reset()

    with pytest.raises(SnapshotLost):
        shard.changes.read("one", 0)
    with pytest.raises(SnapshotLost):
        shard.changes.thaw("one", True)


@pytest.mark.parametrize("kind", KINDS)
def test_restored_rows_train_to_the_same_bits(make_shards, kind):
    options = {"optimizer": Adagrad(lr=0.1), **KINDS[kind]}
    old, new = make_shards(1, **options), make_shards(1, **options)
    rng = np.random.default_rng(3)
    for _ in range(30):
        churn(old, rng)
    (source,), (target,) = old.shards, new.shards
    target.steps = source.steps
    source.freeze("cut", "")
    for piece in itertools.count():
        block = source.changes.read("cut", piece)
        if block is None:
            break
        if block:
            target.restore(block)
    source.changes.thaw("cut", False)

    assert copy_of(source) == copy_of(target)
    for _ in range(30):
        seed = int(rng.integers(1 << 30))
        churn(old, np.random.default_rng(seed), top=500 if kind != "dense" else 300)
        churn(new, np.random.default_rng(seed), top=500 if kind != "dense" else 300)
    assert copy_of(source) == copy_of(target)


@pytest.mark.parametrize(
    "change",
    [
        {"ids": np.array([1, 1])},
        {"ids": np.array([1.0, 2.0])},
        {"rows": np.zeros((2, 3), np.float32)},
        {"rows": np.zeros((2, 4), np.float64)},
        {"state.square_sum": np.zeros((2, 4), np.float32)},
        {"other": np.zeros(2)},
        {"buckets": np.array([1])},
    ],
)
def test_rows_that_do_not_fit_change_nothing(make_shards, change):
    (shard,) = make_shards(1, optimizer=SGD(lr=1.0)).shards
    arrays = {"ids": np.array([1, 2]), "rows": np.zeros((2, 4), np.float32)}

    with pytest.raises(InvalidRequest):
        shard.restore(arrays | change)

    assert shard.row_count == 0


def test_rows_put_aside_count_and_without_room_the_cut_is_lost_not_the_step(make_shards):
    budget = Budget(2_000_000)
    shards = make_shards(rows=20_000, dim=16, home={"budget": budget})
    (shard,) = shards.shards
    ids = np.arange(20_000)
    shards.read(ids)
    held = budget.taken

    shard.freeze("cut", "")
    shards.push(ids[:2000], np.ones((2000, 16), np.float32))
    assert budget.taken >= held + 2000 * 16 * 4
    shards.push(ids[2000:], np.ones((18_000, 16), np.float32))

    assert shard.steps == 2
    assert budget.taken == held
    with pytest.raises(SnapshotLost, match="max_store_bytes"):
        shard.changes.read("cut", 0)


def test_memory_of_rows_put_aside_is_given_back_as_they_are_read(make_shards):
    budget = Budget(1 << 30)
    shards = make_shards(rows=300, home={"budget": budget})
    (shard,) = shards.shards
    shards.read(np.arange(300))
    held = budget.taken

    shard.freeze("cut", "")
    shards.push(np.arange(300), np.ones((300, 4), np.float32))
    assert budget.taken > held
    collect(shard, "cut")
    assert budget.taken == held
    shard.changes.thaw("cut", False)
    assert budget.taken == held

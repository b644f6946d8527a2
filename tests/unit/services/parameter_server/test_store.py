import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gradmesh.protos.errors import (
    ContextReleased,
    Draining,
    InvalidRequest,
    ShardNotReady,
    StaleGeneration,
    StaleShardMap,
    StepPending,
    StoreFull,
    TableNotFound,
)
from gradmesh.services.parameter_server.table import TableShard

EVERY = np.arange(50)


@pytest.fixture
def pool():
    with ThreadPoolExecutor(6) as pool:
        yield pool


def look_up(store, make, ids=EVERY, *, timeout_s=20.0, **how):
    how = {"epoch": 1, "context": None, "number": 1, "mark": None} | how
    (rows,) = store.lookup(["user"], [np.asarray(ids)], make.deadline(timeout_s), **how)
    return rows


def contribute(store, make, counter, value, ids=EVERY, mark=None):
    """Look rows up, give gradients of one number back, and apply."""
    context = make.context(counter)
    look_up(store, make, ids, context=context, mark=mark)
    store.backward(context, 1, [np.full((len(ids), 3), value, np.float32)])
    return store.apply(context, mark)


def test_a_table_is_made_once_however_many_ask(make, pool):
    store = make.store()
    together = threading.Barrier(6, timeout=120)

    def ask():
        together.wait()
        return store.table("user", make.deadline())

    made = [job.result(timeout=120) for job in [pool.submit(ask) for _ in range(6)]]

    assert len(set(map(id, made))) == 1
    assert store.tables() == made[:1]


def test_a_table_that_does_not_fit_is_refused_before_it_is_allocated(make):
    store = make.store(make.spec("small"), make.spec("huge", rows=2**40, dim=2**16))

    with pytest.raises(StoreFull, match=r"'huge'.*max_store_bytes"):
        store.table("huge", make.deadline())

    assert store.tables() == []


def test_tables_share_the_memory(make):
    need = TableShard(make.spec(), make.shards(), 0).bytes
    store = make.store(make.spec("a"), make.spec("b"), max_bytes=int(1.5 * need))
    store.table("a", make.deadline())

    with pytest.raises(StoreFull, match="'b'"):
        store.table("b", make.deadline())

    assert [table.spec.name for table in store.tables()] == ["a"]


def test_a_server_without_a_shard_makes_no_table(make):
    shards = make.shards()
    store = make.store(shards=type(shards)(4, ["other"], ["other"], shards.bucket_shards))

    with pytest.raises(StaleShardMap, match="ps-0 holds no shard of map 4"):
        store.table("user", make.deadline())


def test_making_a_table_does_not_hold_up_the_others(make, pool, monkeypatch):
    store = make.store(make.spec(), make.spec("slow"))
    store.table("user", make.deadline())
    begun, go_on = threading.Event(), threading.Event()
    original = TableShard.__init__

    def slow(self, *args, **options):
        begun.set()
        assert go_on.wait(120)
        original(self, *args, **options)

    monkeypatch.setattr(TableShard, "__init__", slow)
    making = pool.submit(store.table, "slow", make.deadline())
    assert begun.wait(120)

    rows = look_up(store, make)
    contribute(store, make, 1, 1.0)
    with pytest.raises(ShardNotReady, match="busy making"):
        store.table("slow", make.deadline(0.05))
    go_on.set()

    assert rows.shape == (50, 3)
    assert making.result(timeout=120).spec.name == "slow"


@pytest.mark.parametrize("epoch", [0, 2])
def test_another_epoch_is_refused(make, epoch):
    store = make.store()

    with pytest.raises(StaleShardMap, match=f"shard map {epoch}, 1 is current on ps-0"):
        look_up(store, make, epoch=epoch, context=make.context())
    with pytest.raises(StaleShardMap):
        store.push(("w", 1, 1), [], [], epoch, make.deadline())

    assert store.contexts.open_count() == 0


def test_a_lookup_of_several_tables_is_atomic(make):
    store = make.store(make.spec("a"), make.spec("b"))

    with pytest.raises(TableNotFound):
        store.lookup(
            ["a", "c"],
            [EVERY, EVERY],
            make.deadline(),
            epoch=1,
            context=make.context(),
            number=1,
            mark=None,
        )

    assert store.contexts.open_count() == 0


def test_a_context_applies_at_once_and_once(make):
    store = make.store()

    contribute(store, make, 1, 1.0)
    store.apply(make.context(1), None)

    assert (look_up(store, make) == 0).all()
    assert store.table("user", make.deadline()).steps == 1


def test_a_step_is_applied_when_all_ranks_are_here(make):
    store = make.store()
    store.start_run(1, 2, ["user"], make.deadline())

    first = contribute(store, make, 1, 1.0, mark=make.mark(0, 0))
    between = look_up(store, make)
    second = contribute(store, make, 2, 3.0, mark=make.mark(0, 1))
    again = store.apply(make.context(2), make.mark(0, 1))

    assert (first, second, again) == (0, 1, 1)
    assert (between == 1).all()
    assert (look_up(store, make) == -1).all()


def test_a_lookup_wakes_with_the_step_it_waits_for(make, pool):
    store = make.store()
    store.start_run(1, 1, ["user"], make.deadline())

    waiting = pool.submit(look_up, store, make, mark=make.mark(1))
    contribute(store, make, 1, 1.0, mark=make.mark(0))

    assert (waiting.result(timeout=120) == 0).all()


@pytest.mark.parametrize("end", ["fence", "start_run"])
def test_a_lookup_wakes_with_the_end_of_its_generation(make, pool, end):
    store = make.store()
    store.start_run(1, 1, ["user"], make.deadline())
    waiting = pool.submit(look_up, store, make, mark=make.mark(1), timeout_s=30.0)

    if end == "fence":
        store.fence(2)
    else:
        store.start_run(2, 1, ["user"], make.deadline())

    with pytest.raises(StaleGeneration, match="join again"):
        waiting.result(timeout=120)


def test_a_server_that_leaves_ends_all_waits(make, pool):
    store = make.store()
    store.start_run(1, 1, ["user"], make.deadline())
    waiting = pool.submit(look_up, store, make, mark=make.mark(1), timeout_s=30.0)

    store.close()

    with pytest.raises(Draining, match="ps-0 is leaving"):
        waiting.result(timeout=120)
    assert (look_up(store, make) == 1).all()


def test_waiting_ends_before_the_caller_does(make):
    store = make.store()
    store.start_run(1, 1, ["user"], make.deadline())

    begun = time.monotonic()
    with pytest.raises(StepPending, match="ps-0 has applied 0 steps, step 1 needs 1"):
        look_up(store, make, mark=make.mark(1), timeout_s=0.3)

    assert 0.1 < time.monotonic() - begun < 10


@pytest.mark.parametrize("max_waiters", [0, 2])
def test_waiters_are_limited_and_others_get_step_pending(make, pool, eventually, max_waiters):
    store = make.store(max_waiters=max_waiters)
    store.start_run(1, 1, ["user"], make.deadline())
    waiting = [
        pool.submit(look_up, store, make, mark=make.mark(1), timeout_s=30.0)
        for _ in range(max_waiters)
    ]
    eventually(lambda: store.steps.waiters == max_waiters)

    begun = time.monotonic()
    with pytest.raises(StepPending):
        look_up(store, make, mark=make.mark(1), timeout_s=30.0)
    took_s = time.monotonic() - begun
    ready = look_up(store, make, mark=make.mark(0))
    contribute(store, make, 1, 1.0, mark=make.mark(0))

    assert took_s < 15  # it may wait for 30 s
    assert (ready == 1).all()
    assert all((job.result(timeout=120) == 0).all() for job in waiting)


def test_a_run_begins_from_the_initial_rows_and_ends_all_contexts(make):
    store = make.store()
    contribute(store, make, 1, 1.0)
    look_up(store, make, context=make.context(2))

    store.start_run(1, 1, ["user"], make.deadline())

    assert (look_up(store, make) == 1).all()
    with pytest.raises(ContextReleased):
        store.backward(make.context(2), 1, [np.ones((50, 3), np.float32)])


def test_a_run_begins_once(make):
    store = make.store()
    store.start_run(3, 1, ["user"], make.deadline())
    contribute(store, make, 1, 1.0, mark=make.mark(0, generation=3))

    store.start_run(3, 1, ["user"], make.deadline())
    with pytest.raises(InvalidRequest, match="began with 1 trainers, not 2"):
        store.start_run(3, 2, ["user"], make.deadline())
    with pytest.raises(StaleGeneration, match="generation 2 has ended, 3 is current"):
        store.start_run(2, 1, ["user"], make.deadline())

    assert (look_up(store, make) == 0).all()


def test_a_stale_run_makes_no_table(make):
    store = make.store()
    store.fence(5)

    with pytest.raises(StaleGeneration):
        store.start_run(4, 1, ["user"], make.deadline())

    assert store.tables() == []


def test_the_fence_never_goes_back(make):
    store = make.store()
    store.fence(5)
    store.fence(3)

    with pytest.raises(StaleGeneration):
        store.start_run(4, 1, [], make.deadline())


def test_a_mark_of_another_generation_leaves_its_context_alone(make):
    store = make.store()
    store.start_run(2, 1, ["user"], make.deadline())
    context = make.context()
    look_up(store, make, context=context)
    store.backward(context, 1, [np.ones((50, 3), np.float32)])

    with pytest.raises(StaleGeneration):
        store.apply(context, make.mark(0, generation=1))
    with pytest.raises(StepPending):
        store.apply(context, make.mark(10**6, generation=2))
    store.apply(context, make.mark(0, generation=2))

    assert (look_up(store, make) == 0).all()


def test_a_push_with_one_bad_table_is_refused_as_a_whole(make):
    store = make.store(make.spec("a"), make.spec("b"))
    good = np.ones((50, 3), np.float32)

    with pytest.raises(InvalidRequest, match="'b': a gradient is NaN"):
        store.push(("w", 1, 1), ["a", "b"], [EVERY, good, EVERY, good * np.nan], 1, make.deadline())
    applied = store.push(("w", 1, 1), ["a", "b"], [EVERY, good, EVERY, good], 1, make.deadline())

    assert applied
    assert [table.steps for table in store.tables()] == [1, 1]


def test_lookups_pushes_and_steps_at_once_lose_nothing(make, pool):
    store = make.store()

    def push(worker):
        for number in range(1, 21):
            grads = np.ones((50, 3), np.float32)
            store.push((worker, 1, number), ["user"], [EVERY, grads], 1, make.deadline())

    def train(begin):
        for counter in range(begin, begin + 20):
            contribute(store, make, counter, 1.0)

    jobs = [pool.submit(push, "a"), pool.submit(push, "b")]
    jobs += [pool.submit(train, 1), pool.submit(train, 100)]
    for job in jobs:
        job.result(timeout=120)

    assert (look_up(store, make) == 1 - 80).all()
    assert store.table("user", make.deadline()).steps == 80

"""A store recovered from its log equals, bit for bit, the store that wrote it."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gradmesh.protos.errors import (
    InvalidRequest,
    LookupNotFound,
    RunLost,
    ShardMismatch,
    StaleGeneration,
)
from gradmesh.sdk.transport.deadline import Deadline
from gradmesh.services.parameter_server.log import LogCorrupt, Mode
from gradmesh.services.parameter_server.log.log import segments_of
from gradmesh.services.parameter_server.log.record import Pushed, RowsLoaded, RowsStaged, TableMade
from gradmesh.services.parameter_server.log.snapshot import LogKeeper, take_snapshot
from tests.unit.services.parameter_server.log.server import Server, contents


@pytest.fixture
def server(make, tmp_path):
    made = Server(make, tmp_path / "log")
    yield made
    made.close()


def test_pushes_contexts_and_runs_come_back(server, make):
    server.push("dense", [1, 2], 1.0)
    server.push("hash", [2**40, -3], 0.5)
    server.contribute("dense", [2, 3], 2.0)
    before = contents(server.store)

    assert server.open() > 0

    after = contents(server.store)
    # Rows that were only looked up follow from their seed, stored or not.
    assert after["dense"][0] == before["dense"][0]
    assert after["hash"] == before["hash"]
    server.lookup("dense", [1, 2, 3, 4])


def test_a_push_counts_once_over_a_restart(server):
    assert server.push("dense", [1], 1.0, number=7)
    server.open()

    assert not server.push("dense", [1], 1.0, number=7)
    assert (server.lookup("dense", [1]) == 1 - 0.5).all()


def test_a_push_of_two_tables_is_recovered_atomically(server):
    server.push("dense", [1], 1.0, number=1)
    server.push("", [5], 1.0, number=2, names=["dense", "hash"])
    ((_, path), *_) = segments_of(server.folder)
    path.write_bytes(path.read_bytes()[:-4])
    server.open()

    assert (server.lookup("dense", [5]) == 1).all()
    assert (server.lookup("hash", [5]) == 1).all()
    assert server.push("", [5], 1.0, number=2, names=["dense", "hash"])


def test_an_applied_context_counts_once_over_a_restart(server, make):
    server.contribute("dense", [1], 1.0)
    changed = server.lookup("dense", [1])
    server.open()

    server.store.apply(make.context(1), None)

    np.testing.assert_array_equal(server.lookup("dense", [1]), changed)


def test_a_recovered_step_belongs_to_an_ended_generation(server, make):
    server.store.start_run(1, 2, ["dense"], make.deadline())
    server.contribute("dense", [1, 2], 1.0, make.mark(0, 0))
    server.contribute("dense", [2, 3], 3.0, make.mark(0, 1))
    rows = server.lookup("dense", [1, 2, 3])
    server.open()

    with pytest.raises(StaleGeneration):
        server.lookup("dense", [1], mark=make.mark(1, 0))
    run = server.store.steps.inspect(2)
    server.store.start_run(2, 2, ["dense"], make.deadline(), origin=1, steps=1)

    assert (run.origin, run.applied_steps) == (1, 1)
    np.testing.assert_array_equal(server.lookup("dense", [1, 2, 3]), rows)
    server.lookup("dense", [1], mark=make.mark(1, 0, generation=2))


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("counts", [False, True])
def test_a_prepared_step_is_applied_or_dropped_as_the_next_generation_says(
    make, tmp_path, restarted, counts
):
    # One of two servers, so it waits until the other one has prepared the step, too.
    server = Server(make, tmp_path, shards=make.shards(2))
    ids = [i for i in range(60) if make.shards(2).shards_of(np.array([i]))[0] == 0][:3]
    server.store.start_run(1, 1, ["dense"], make.deadline())
    assert server.contribute("dense", ids, 1.0, make.mark(0)) == 1
    untouched = contents(server.store)["dense"]
    if restarted:
        server.open()
    run = server.store.steps.inspect(2)
    state = run.applied_steps, run.prepared_steps

    server.store.start_run(2, 1, [], make.deadline(), origin=1, steps=int(counts))
    applied = contents(server.store)["dense"]
    server.open()

    assert state == (0, 1)
    assert (server.lookup("dense", ids) == (0.5 if counts else 1.0)).all()
    assert contents(server.store)["dense"][1] == applied[1] == int(counts)
    if not counts:
        assert applied[1:] == untouched[1:]
    with pytest.raises(RunLost, match="does not hold run 1 at step 3"):
        server.store.start_run(4, 1, [], make.deadline(), origin=1, steps=3)
    server.close()


def test_a_later_mark_says_that_all_servers_have_prepared(make, tmp_path):
    server = Server(make, tmp_path, shards=make.shards(2))
    ids = [i for i in range(60) if make.shards(2).shards_of(np.array([i]))[0] == 0][:3]
    server.store.start_run(1, 1, ["dense"], make.deadline())
    server.contribute("dense", ids, 1.0, make.mark(0))

    before = server.lookup("dense", ids)
    after = server.lookup("dense", ids, mark=make.mark(1))

    assert (before == 1).all()
    assert (after == 0.5).all()
    server.close()


def test_a_run_of_another_size_is_refused(server, make):
    server.store.start_run(3, 1, [], make.deadline())
    with pytest.raises(InvalidRequest):
        server.store.start_run(2, 1, [], make.deadline(), origin=3)


def test_a_restore_that_did_not_end_stays_closed(server, make):
    server.push("dense", [1], 1.0)
    server.store.checkpointing.begin_restore("r", ["dense"], make.deadline())
    rows = {"ids": np.array([4]), "rows": np.full((1, 3), 9, np.float32)}
    server.store.checkpointing.load_rows("r", "dense", 1, rows, make.deadline())
    server.open()

    with pytest.raises(Exception, match="is being restored"):
        server.lookup("dense", [4])
    server.store.checkpointing.end_restore("r", [12], make.deadline())
    server.open()

    assert (server.lookup("dense", [4]) == 9).all()
    assert (server.lookup("dense", [1]) == 1).all()
    assert contents(server.store)["dense"][1] == 12


def test_buckets_that_are_not_this_servers_are_refused(make, tmp_path):
    server = Server(make, tmp_path)
    server.push("dense", [1], 1.0)
    server._shards = make.shards(2)
    server.open()

    with pytest.raises(ShardMismatch, match="another number of parameter servers"):
        server.lookup("dense", [1])
    server.close()


def test_a_gap_is_refused(server):
    for _ in range(60):
        server.push("dense", [1], 1.0)
    segments_of(server.folder)[1][1].unlink()

    with pytest.raises(LogCorrupt, match=r"records \d+ to \d+ before it are missing"):
        server.open()


def test_a_snapshot_shortens_the_log_and_damage_in_it_is_named(server):
    for _ in range(60):
        server.push("lru", np.arange(50), 1.0)
    longer = server.store.log.bytes_since_snapshot
    assert take_snapshot(server.store)
    server.push("lru", [3], 1.0)
    before = contents(server.store)

    assert server.store.log.bytes_since_snapshot < longer / 10
    assert server.open() == 2  # the use and the push
    assert contents(server.store) == before

    (data,) = [p for p in server.folder.rglob("*.safetensors") if p.stat().st_size > 500]
    data.write_bytes(data.read_bytes()[:-1] + b"\x07")
    with pytest.raises(LogCorrupt, match=data.name):
        server.open()


def test_in_mode_fsync_everything_waits_for_the_disk_and_comes_back(make, tmp_path, monkeypatch):
    server = Server(make, tmp_path, Mode.FSYNC)
    waited = []
    original = server._log.wait
    monkeypatch.setattr(server._log, "wait", lambda n: waited.append(n) or original(n))
    server.push("dense", [1], 1.0)
    server.contribute("hash", [7], 1.0)
    server.store.start_run(1, 1, ["dense"], make.deadline())
    context = make.context(99)
    server.lookup("dense", [2], context, make.mark(0))
    server.store.backward(context, 1, [np.ones((1, 3), np.float32)])
    server.store.apply(context, make.mark(0), make.deadline(), returned=1)
    rows = server.lookup("dense", [1, 2]), server.lookup("hash", [7])
    server.open()

    assert len(waited) == 3
    assert server._log._durable == server._log.next_number - 1
    np.testing.assert_array_equal(server.lookup("dense", [1, 2]), rows[0])
    np.testing.assert_array_equal(server.lookup("hash", [7]), rows[1])
    server.close()


def test_gradients_that_a_restart_lost_are_missed(server, make):
    context = make.context(5)
    server.lookup("dense", [1], context)
    server.store.backward(context, 1, [np.ones((1, 3), np.float32)])
    server.open()

    with pytest.raises(LookupNotFound, match="this server restarted; run the step again"):
        server.store.apply(context, None, returned=1)
    # No gradients were sent here before, so none are missed.
    server.store.apply(make.context(6), None, returned=0)


def test_a_step_whose_end_was_not_written_is_still_prepared(make, tmp_path):
    server = Server(make, tmp_path, shards=make.shards(2))
    ids = [i for i in range(60) if make.shards(2).shards_of(np.array([i]))[0] == 0][:3]
    server.store.start_run(1, 1, ["dense"], make.deadline())
    for step in range(3):
        server.contribute("dense", ids, 1.0, make.mark(step))
    after = server.lookup("dense", ids, mark=make.mark(3))  # applies the third
    server._log._deferred = None  # killed before the next record
    server.open()
    run = server.store.steps.inspect(2)
    state = run.applied_steps, run.prepared_steps
    server.store.start_run(2, 1, [], make.deadline(), origin=1, steps=3)

    assert state == (2, 3)
    np.testing.assert_array_equal(server.lookup("dense", ids), after)
    server.close()


def test_the_keeper_shortens_a_log_that_has_grown(server, eventually):
    for _ in range(30):
        server.push("hash", np.arange(40), 1.0)
    keeper = LogKeeper(server.store, 1)
    held = sum(table.bytes for table in server.store.tables())
    server.store.log.bytes_since_snapshot += held

    eventually(lambda: list(server.folder.glob("snapshot-*")), timeout_s=20)
    keeper.close()

    assert server.open() == 0


@pytest.mark.timeout(600)
def test_snapshots_under_load_block_no_push_and_lose_nothing(server, make):
    ended, pushed = threading.Event(), [0] * 3
    with ThreadPoolExecutor(3) as pool:

        def push(worker):
            while not ended.is_set():
                done = pushed[worker] + 1
                ids, rows = np.arange(20), np.ones((20, 3), np.float32)
                sender = (f"w{worker}", 1, done)
                server.store.push(sender, ["lru"], [ids, rows], 1, make.deadline())
                server.lookup("lru", [worker, done % 40])
                pushed[worker] = done

        jobs = [pool.submit(push, worker) for worker in range(3)]
        taken, deadline = 0, Deadline.after(40)
        while (taken < 5 or min(pushed) < 20) and not deadline.passed:
            taken += take_snapshot(server.store)
        ended.set()
        for job in jobs:
            job.result(timeout=120)
    before = contents(server.store)
    server.open()

    assert taken >= 5
    assert min(pushed) >= 20
    assert contents(server.store) == before
    assert server.store.registry["lru"].steps == sum(pushed)
    for worker, count in enumerate(pushed):
        sender = (f"w{worker}", 1, count)
        arrays = [np.arange(1), np.ones((1, 3), np.float32)]
        assert not server.store.push(sender, ["lru"], arrays, 1, make.deadline())


_ids = st.lists(st.integers(0, 40), min_size=1, max_size=6, unique=True)
_table = st.sampled_from(["dense", "hash", "lru", "often", "ttl"])
_operation = st.one_of(
    st.tuples(st.just("push"), _table, _ids),
    st.tuples(st.just("lookup"), _table, _ids),
    st.tuples(st.just("context"), _table, _ids),
    st.tuples(st.just("step"), _table, _ids),
    st.tuples(st.just("run"), st.just("dense"), st.just([0])),
    st.tuples(st.just("snapshot"), st.just(""), st.just([0])),
    st.tuples(st.just("restart"), st.just(""), st.just([0])),
)


# A row that expired and is not removed yet when the log's snapshot is taken.
_EXPIRED = [
    ("step", "dense", [0]),
    ("lookup", "ttl", [1]),
    *[("step", "dense", [0]), ("step", "ttl", [0])],
    *[("push", "ttl", [0])] * 2,
    ("snapshot", "", [0]),
]


@settings(
    deadline=None,
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(operations=st.lists(_operation, max_size=25))
@example(operations=_EXPIRED)
@example(operations=[*_EXPIRED, ("restart", "", [0]), ("push", "ttl", [2]), ("snapshot", "", [0])])
def test_any_history_is_recovered(make, tmp_path_factory, operations):
    server = Server(make, tmp_path_factory.mktemp("log"))
    generation, step = 0, 0
    try:
        for number, (kind, table, ids) in enumerate(operations):
            value = 0.25 * number - 1
            if kind == "push":
                server.push(table, ids, value)
            elif kind == "lookup":
                server.lookup(table, ids)
            elif kind == "context":
                server.contribute(table, ids, value)
            elif kind == "run" or (kind == "step" and not generation):
                generation, step = generation + 2, 0
                names = [t.spec.name for t in server.store.tables()]
                server.store.start_run(generation, 1, names, make.deadline())
            elif kind == "step":
                mark = make.mark(step, 0, generation)
                server.contribute(table, ids, value, mark)
                step += 1
            elif kind == "snapshot":
                take_snapshot(server.store)
            else:
                server.open()
                if generation:
                    origin = server.store.steps.run.origin
                    generation += 2
                    server.store.start_run(
                        generation, 1, [], make.deadline(), origin=origin, steps=step
                    )
        expected = contents(server.store)
        answers = {t: server.store.registry[t].read(np.arange(41), peek=True) for t in expected}
        server.open()

        found = contents(server.store)
        for name, (rows, steps, memory, marks) in found.items():
            assert (steps, memory) == expected[name][1:3]
            if server.store.registry[name].counts_uses:
                assert (rows, marks) == (expected[name][0], expected[name][3])
            np.testing.assert_array_equal(
                server.store.registry[name].read(np.arange(41), peek=True), answers[name]
            )
    finally:
        server.close()


UNFIT = {
    "a push to no table": (Pushed(("w", 1, 9), ["none"]), [np.arange(1), np.ones((1, 3))]),
    "a push without arrays": (Pushed(("w", 1, 9), ["dense"]), []),
    "ids beyond the rows": (Pushed(("w", 1, 9), ["dense"]), [np.array([10**9]), np.ones((1, 3))]),
    "rows of another dim": (RowsLoaded("dense", ["ids", "rows"]), [np.arange(2), np.ones((2, 9))]),
    "other names": (RowsLoaded("dense", ["ids"]), [np.arange(2), np.ones((2, 3))]),
    "a bucket of no server": (
        RowsLoaded("lru", ["buckets", "clocks"]),
        [np.array([-1]), np.zeros(1, np.uint32)],
    ),
    "a specification of noise": (TableMade(b"\xff\xff", b""), []),
    "rows of no reshard": (RowsStaged("dense", ["ids"]), [np.arange(2)]),
}


@pytest.mark.parametrize(("record", "arrays"), UNFIT.values(), ids=UNFIT)
def test_a_record_that_does_not_fit_the_store_is_named(server, record, arrays):
    server.push("dense", [1], 1.0)
    log = server.store.log
    with log.append_lock:
        log.append(record, arrays)

    with pytest.raises(LogCorrupt, match=rf"record \d+ \({type(record).__name__}\) does not fit"):
        server.open()

"""A store that comes back from its log is, bit for bit, the store that wrote it."""

import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradmesh.protos.coordinator.v1 import table_pb2
from gradmesh.protos.errors import InvalidRequest, RunLost, ShardMismatch, StaleGeneration
from gradmesh.services.parameter_server.log import Log, LogCorrupt, Mode
from gradmesh.services.parameter_server.log.recovery import recover
from gradmesh.services.parameter_server.log.segment import segments_of
from gradmesh.services.parameter_server.log.snapshot import take_snapshot

_HASH = table_pb2.TABLE_KIND_HASH
_ADAGRAD = table_pb2.Recipe(name="adagrad", settings={"lr": 0.5})


def specs(make):
    lru = {"eviction": table_pb2.Recipe(name="lru"), "max_bytes": 4096 * 400}
    often = table_pb2.Recipe(name="frequency", settings={"count": 2})
    ttl = table_pb2.Recipe(name="ttl", settings={"steps": 3})
    return [
        make.spec("dense", rows=60, optimizer=_ADAGRAD),
        make.spec("hash", rows=0, kind=_HASH, optimizer=_ADAGRAD),
        make.spec("lru", rows=0, kind=_HASH, **lru),
        make.spec("often", rows=0, kind=_HASH, admission=often),
        make.spec("ttl", rows=0, kind=_HASH, eviction=ttl),
    ]


class Server:
    """A store with a log that can be opened again, as after kill -9."""

    def __init__(self, make, folder, mode=Mode.OS, shards=None):
        self._make, self.folder, self._mode = make, folder, mode
        self._shards = shards or make.shards()
        self._log = None
        self.store = None
        self.counter = itertools.count(1)
        self.open()

    def open(self):
        if self._log is not None:
            self._log.close()
        self._log = Log(self.folder, self._mode, owner="ps-0", segment_bytes=2000)
        self.store = self._make.store(
            *specs(self._make), max_bytes=1 << 26, log=self._log, shards=self._shards
        )
        return recover(self.store)

    def close(self):
        self._log.close()

    def lookup(self, table, ids, context=None, mark=None):
        (rows,) = self.store.lookup(
            [table],
            [np.asarray(ids, np.int64)],
            self._make.deadline(),
            epoch=1,
            context=context,
            number=1,
            mark=mark,
        )
        return rows

    def push(self, table, ids, value, number=None, names=None):
        ids = np.asarray(ids, np.int64)
        arrays = [ids, np.full((ids.size, 3), value, np.float32)]
        names = names or [table]
        sender = ("w", 1, number or next(self.counter))
        return self.store.push(sender, names, arrays * len(names), 1, self._make.deadline())

    def contribute(self, table, ids, value, mark=None):
        context = self._make.context(next(self.counter))
        self.lookup(table, ids, context, mark)
        self.store.backward(context, 1, [np.full((len(ids), 3), value, np.float32)])
        return self.store.apply(context, mark)


def contents(store):
    """Everything that a table answers and decides by, as comparable values."""
    found = {}
    for table in store.tables():
        rows = {}
        for ids, values, state in table.blocks():
            parts = [values, *(state[name] for name in sorted(state))]
            for place, id_ in enumerate(ids.tolist()):
                rows[id_] = tuple(part[place].tobytes() for part in parts)
        survey = table.changes._survey
        memory = {n: a.tobytes() for n, a in survey.memory().items()}
        marks = {}
        if table.kind == "hash":
            for piece in range(survey.pieces):
                ids, _, held = survey.piece(piece, 0)
                marks.update(zip(ids.tolist(), held.tolist(), strict=True))
        found[table.spec.name] = rows, table.steps, memory, marks
    return found


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
    # Rows that were only looked up are what their seed says, there or not.
    assert after["dense"][0] == before["dense"][0]
    assert after["hash"] == before["hash"]
    server.lookup("dense", [1, 2, 3, 4])


def test_a_push_counts_once_over_a_restart(server):
    assert server.push("dense", [1], 1.0, number=7)
    server.open()

    assert not server.push("dense", [1], 1.0, number=7)
    assert (server.lookup("dense", [1]) == 1 - 0.5).all()


def test_a_push_of_two_tables_is_there_as_a_whole_or_not_at_all(server):
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


def test_a_step_comes_back_and_its_generation_is_over(server, make):
    server.store.start_run(1, 2, ["dense"], make.deadline())
    server.contribute("dense", [1, 2], 1.0, make.mark(0, 0))
    server.contribute("dense", [2, 3], 3.0, make.mark(0, 1))
    rows = server.lookup("dense", [1, 2, 3])
    server.open()

    with pytest.raises(StaleGeneration):
        server.lookup("dense", [1], mark=make.mark(1, 0))
    run = server.store.steps.look(2)
    server.store.start_run(2, 2, ["dense"], make.deadline(), origin=1, steps=1)

    assert (run.origin, run.applied_steps) == (1, 1)
    np.testing.assert_array_equal(server.lookup("dense", [1, 2, 3]), rows)
    server.lookup("dense", [1], mark=make.mark(1, 0, generation=2))


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("counts", [False, True])
def test_a_prepared_step_is_applied_or_dropped_as_the_next_generation_says(
    make, tmp_path, restarted, counts
):
    # One of two servers, so it waits to hear that the other one has prepared the step, too.
    server = Server(make, tmp_path, shards=make.shards(2))
    ids = [i for i in range(60) if make.shards(2).shards_of(np.array([i]))[0] == 0][:3]
    server.store.start_run(1, 1, ["dense"], make.deadline())
    assert server.contribute("dense", ids, 1.0, make.mark(0)) == 1
    untouched = contents(server.store)["dense"]
    if restarted:
        server.open()
    run = server.store.steps.look(2)
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
    server.store.copies.begin_restore("r", ["dense"], make.deadline())
    rows = {"ids": np.array([4]), "rows": np.full((1, 3), 9, np.float32)}
    server.store.copies.load_rows("r", "dense", 1, rows, make.deadline())
    server.open()

    with pytest.raises(Exception, match="is being restored"):
        server.lookup("dense", [4])
    server.store.copies.end_restore("r", [12], make.deadline())
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


@settings(
    deadline=None,
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(operations=st.lists(_operation, max_size=25))
def test_whatever_happened_comes_back(make, tmp_path_factory, operations):
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
        answers = {t: server.store.shelf[t].read(np.arange(41), peek=True) for t in expected}
        server.open()

        found = contents(server.store)
        for name, (rows, steps, memory, marks) in found.items():
            assert (steps, memory) == expected[name][1:3]
            if server.store.shelf[name].counts_uses:
                assert (rows, marks) == (expected[name][0], expected[name][3])
            np.testing.assert_array_equal(
                server.store.shelf[name].read(np.arange(41), peek=True), answers[name]
            )
    finally:
        server.close()

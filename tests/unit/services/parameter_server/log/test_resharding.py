"""A server that sends buckets away and gets them back has its former state, over any restart."""

import numpy as np
import pytest

from gradmesh.protos.errors import (
    InvalidRequest,
    ReshardAborted,
    ShardNotReady,
    StaleShardMap,
)
from gradmesh.protos.sharding import BUCKETS, buckets_of
from gradmesh.services.parameter_server.handover import whole_tables
from gradmesh.services.parameter_server.log.record import LoggedRun, MarksStaged
from gradmesh.services.parameter_server.log.snapshot import take_snapshot
from tests.unit.services.parameter_server.log.server import Server, contents

ALL = np.ones(BUCKETS, np.bool_)
HALF = np.arange(BUCKETS) % 2 == 0
RUN = LoggedRun(3, 4, 2, 7, None, [])


@pytest.fixture
def begin(make, tmp_path):
    """Open servers with rows in tables of all kinds."""
    made = []

    def begin(name):
        server = Server(make, tmp_path / name)
        made.append(server)
        rng = np.random.default_rng(7)
        for step in range(6):
            for table in ("dense", "hash", "lru", "often", "ttl"):
                ids = np.unique(rng.integers(0, 60, 30))
                server.push(table, ids, float(step))
        return server

    yield begin
    for server in made:
        server.close()


def only(found, wanted):
    """Return the contents of some buckets: rows, steps and marks."""

    def keep(by_id):
        ids = np.array(list(by_id), np.int64)
        held = wanted[buckets_of(ids)] if ids.size else ids
        return {id_: by_id[id_] for id_, kept in zip(ids.tolist(), held, strict=True) if kept}

    return {name: (keep(r), steps, keep(m)) for name, (r, steps, _, m) in found.items()}


def lose_half(server, restart=lambda server: None):
    resharding = server.store.resharding
    resharding.begin(1, HALF, HALF, is_new=False, epoch=2, servers=2)
    restart(server)
    server.store.resharding.adopt(2, alone=False)


def stage_other_half(server, whole, number=2):
    deadline = server._make.deadline()
    for counting in (False, True):
        for name, block, _ in whole_tables(whole.store, ~HALF, counting=counting):
            if block:
                server.store.resharding.stage_rows(number, name, dict(block), deadline)
    steps = {table.name: table.steps for table in whole.store.tables()}
    marks = MarksStaged("ps-1", RUN, steps, whole.store.writer.pushes.dump())
    server.store.resharding.stage_marks(number, marks, deadline)


@pytest.mark.parametrize("restart", [lambda server: None, Server.open], ids=["live", "restarted"])
def test_buckets_leave_a_server(begin, restart):
    server = begin("one")
    before = contents(server.store)

    lose_half(server, restart)

    after = contents(server.store)
    assert only(after, ALL) == only(before, HALF)
    server.open()
    assert contents(server.store) == after
    with pytest.raises(StaleShardMap, match="is on another server"):
        server.store.registry["hash"].slots_of(np.arange(60))


def copy_own_half(server):
    """Copy the remaining rows in small parts, as a server does while it trains."""
    resharding = server.store.resharding
    for name, block, _ in whole_tables(server.store, HALF, counting=False):
        if block:
            resharding.keep(name, dict(block))
    resharding.check_room(kept=True)


@pytest.mark.parametrize("copy", [lambda server: None, copy_own_half], ids=["late", "early"])
@pytest.mark.parametrize("restart", [lambda server: None, Server.open], ids=["live", "restarted"])
def test_buckets_return_to_a_server(begin, restart, copy):
    whole, server = begin("whole"), begin("half")
    expected = contents(whole.store)
    lose_half(server)
    server.store.resharding.begin(2, ALL, HALF, is_new=False, epoch=3, servers=2)
    copy(server)
    stage_other_half(server, whole)

    restart(server)
    server.store.resharding.adopt(3, alone=True)

    assert contents(server.store) == expected
    server.open()
    assert contents(server.store) == expected
    assert server.store.steps.run.origin == 0, "a server of the old map keeps its own run"


def test_a_server_that_is_new_takes_the_run(begin, make, tmp_path):
    whole, server = begin("whole"), Server(make, tmp_path / "new")
    server.store.resharding.begin(2, ~HALF, ~ALL, is_new=True, epoch=3, servers=2)
    stage_other_half(server, whole)
    server.store.resharding.adopt(3, alone=False)
    server.open()

    run = server.store.steps.run
    assert (run.origin, run.generation, run.world_size, run.applied_steps) == (3, 4, 2, 7)
    assert only(contents(server.store), ALL) == only(contents(whole.store), ~HALF)
    sent_again = (("w", 1, 1), ["dense"], [np.array([], np.int64), np.empty((0, 3), np.float32)])
    assert not server.store.writer.push(sent_again[0], [])
    server.close()


@pytest.mark.parametrize("restart", [lambda server: None, Server.open], ids=["live", "restarted"])
def test_an_abandoned_reshard_leaves_nothing(begin, restart):
    whole, server = begin("whole"), begin("half")
    lose_half(server)
    before = contents(server.store)
    server.store.resharding.begin(2, ALL, HALF, is_new=False, epoch=3, servers=2)
    stage_other_half(server, whole)

    restart(server)
    assert server.store.resharding.number == 2
    server.store.resharding.drop()

    assert contents(server.store) == before
    assert not server.store.resharding.is_staging
    server.open()
    assert contents(server.store) == before
    with pytest.raises(ReshardAborted, match="reshard 2 has ended"):
        stage_other_half(server, whole)


def test_a_server_without_buckets_does_not_claim_the_run(begin):
    server = begin("one")
    deadline = server._make.deadline()
    server.store.start_run(1, 1, ["dense"], deadline, keep_rows=True)
    server.store.resharding.begin(2, ~ALL, ~ALL, is_new=False, epoch=3, servers=2)
    server.store.resharding.adopt(3, alone=False)
    live = server.store.steps.run.origin, server.store.tables()

    server.open()

    assert live == (0, [])
    assert (server.store.steps.run.origin, server.store.tables()) == (0, [])


@pytest.mark.parametrize("reopened", [False, True])
@pytest.mark.parametrize("servers", [1, 2], ids=["planned", "other"])
def test_rows_move_only_under_the_planned_map(begin, servers, reopened):
    server = begin("one")
    before = contents(server.store)
    server.store.resharding.begin(2, ~ALL, ~ALL, is_new=False, epoch=3, servers=1)
    if reopened:
        server.open()

    has_gone = server.store.resharding.end_as_leaver(3, servers)

    assert has_gone == (servers == 1)
    assert contents(server.store) == ({} if has_gone else before)
    with pytest.raises(StaleShardMap):
        server.store.epochs.recheck(2)
    server.open()
    assert contents(server.store) == ({} if has_gone else before)


def test_a_stale_server_that_returns_serves_no_old_rows(begin):
    whole, server = begin("whole"), begin("stale")
    server.push("dense", [1], 9.0)
    # It left without notice; its rows are stale.
    server.store.resharding.begin(2, ~HALF, ~ALL, is_new=True, epoch=3, servers=2)
    stage_other_half(server, whole)

    server.store.resharding.adopt(3, alone=False)

    assert only(contents(server.store), ALL) == only(contents(whole.store), ~HALF)


def test_calls_are_refused_while_the_outcome_is_unknown(begin):
    server = begin("one")
    server.store.resharding.begin(1, HALF, HALF, is_new=False, epoch=2, servers=2)
    assert server.lookup("dense", [1]).shape == (1, 3)

    server.open()

    with pytest.raises(ShardNotReady, match="is adopting"):
        server.lookup("dense", [1])
    server.store.resharding.drop()
    assert server.lookup("dense", [1]).shape == (1, 3)


def test_rows_of_others_and_of_no_reshard_are_refused(begin, make):
    server = begin("one")
    block = {"ids": np.arange(3), "rows": np.ones((3, 3), np.float32)}
    with pytest.raises(ShardNotReady, match="has not begun reshard 1"):
        server.store.resharding.stage_rows(1, "hash", block, make.deadline())
    server.store.resharding.begin(1, ~ALL, ~ALL, is_new=False, epoch=2, servers=2)
    with pytest.raises(StaleShardMap):
        server.store.resharding.stage_rows(1, "hash", block, make.deadline())
    with pytest.raises(InvalidRequest):
        server.store.resharding.stage_rows(1, "hash", {"ids": np.arange(3)}, make.deadline())


def test_the_log_is_not_shortened_while_rows_come(begin):
    server = begin("one")
    server.store.resharding.begin(1, HALF, HALF, is_new=False, epoch=2, servers=2)

    assert not take_snapshot(server.store)

    server.store.resharding.adopt(2, alone=False)
    after = contents(server.store)
    assert take_snapshot(server.store)
    server.open()
    assert {n: rows for n, (rows, *_) in contents(server.store).items()} == {
        n: rows for n, (rows, *_) in after.items()
    }


def test_rows_that_changed_are_sent_again(begin):
    server = begin("one")
    migration = server.store.registry["hash"].changes.migration
    migration.follow()
    server.push("hash", [3, 1], 1.0)
    server.push("hash", [3], 1.0)
    server.lookup("hash", [77])

    assert migration.take_changed().tolist() == [1, 3]
    assert migration.take_changed().tolist() == []
    block = migration.rows_of(np.array([1, 3, 1000]))
    assert block["ids"].tolist() == [1, 3]
    assert (block["rows"] == server.lookup("hash", [1, 3])).all()
    server.store.registry["hash"].reset()
    with pytest.raises(ReshardAborted, match="was reset or restored"):
        migration.take_changed()

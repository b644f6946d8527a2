import numpy as np
import pytest

from gradmesh.protos.errors import InvalidRequest, ShardNotReady, SnapshotLost
from gradmesh.services.parameter_server.run import Run
from gradmesh.services.parameter_server.snapshots import Snapshots
from gradmesh.services.parameter_server.table import TableShard


@pytest.fixture
def table(make):
    shard = TableShard(make.spec(rows=20_000, dim=8), make.shards(), 0)
    shard.read(shard.slots_of(np.arange(10_000)))
    return shard


def read_all(snapshots, name="one", max_bytes=0):
    pages, cursor = [], 0
    while True:
        page, cursor = snapshots.read(name, "user", cursor, max_bytes)
        pages.append(page)
        if not cursor:
            return pages


def test_pages_are_bounded_and_whole(table):
    snapshots = Snapshots()
    snapshots.begin("one", [table], None, "", Run())

    pages = read_all(snapshots, max_bytes=50_000)

    ids = np.concatenate([page["ids"] for page in pages])
    assert sorted(ids) == list(range(10_000))
    assert max(sum(a.nbytes for a in page.values()) for page in pages) < 100_000


def test_newest_page_may_be_asked_for_twice(table):
    snapshots = Snapshots()
    snapshots.begin("one", [table], None, "", Run())

    first, cursor = snapshots.read("one", "user", 0, 1000)
    again = snapshots.read("one", "user", 0, 1000)

    assert again == (first, cursor)
    with pytest.raises(InvalidRequest, match="in order"):
        snapshots.read("one", "user", cursor + 1, 1000)
    with pytest.raises(InvalidRequest, match="not in snapshot"):
        snapshots.read("one", "item", 0, 1000)


def test_armed_snapshot_freezes_when_its_step_comes(table):
    snapshots, run = Snapshots(), Run(1, 1)
    run.applied_steps = 3

    assert not snapshots.begin("one", [table], 5, "", run).frozen
    assert not snapshots.begin("late", [table], 3, "", run).frozen
    with pytest.raises(SnapshotLost):
        snapshots.read("one", "user", 0, 0)
    for step in (4, 5, 6):
        run.applied_steps = step
        snapshots.reach(run)

    found = snapshots.begin("one", [table], 5, "", run)
    assert (found.frozen, found.applied_steps, found.tables[0].name) == (True, 5, "user")


def test_two_snapshots_armed_for_one_step_do_not_conflict(table):
    snapshots, run = Snapshots(), Run(1, 1)
    snapshots.begin("one", [table], 1, "", run)
    snapshots.begin("two", [table], 1, "", run)

    run.applied_steps = 1
    snapshots.reach(run)

    assert snapshots.begin("one", [table], 1, "", run).frozen
    with pytest.raises(ShardNotReady, match="another checkpoint"):
        snapshots.begin("two", [table], 2, "", run)


def test_an_idle_snapshot_is_released_and_a_used_one_is_kept(table):
    now = [0.0]
    snapshots = Snapshots(clock=lambda: now[0])
    snapshots.begin("one", [table], None, "", Run())
    now[0] = 61.0
    assert snapshots.release_idle(60) == 1
    with pytest.raises(SnapshotLost):
        snapshots.read("one", "user", 0, 0)

    snapshots.begin("two", [table], None, "", Run())
    read_all(snapshots, "two")
    now[0] = 200.0
    assert snapshots.release_idle(60) == 0
    snapshots.end("two", stored=True)

    assert snapshots.begin("three", [table], None, "two", Run()).frozen
    assert read_all(snapshots, "three") == [{}]


@pytest.mark.parametrize("name", ["", "one"])
def test_an_empty_snapshot_is_refused(table, name):
    with pytest.raises(InvalidRequest):
        Snapshots().begin(name, [table] if not name else [], None, "", Run())


def test_a_restarted_process_replaces_its_former_snapshot(table):
    snapshots = Snapshots()
    snapshots.begin("one", [table], None, "", Run(), owner=("trainer-0", 1))

    with pytest.raises(ShardNotReady, match="another checkpoint"):
        snapshots.begin("two", [table], None, "", Run(), owner=("trainer-1", 5))
    found = snapshots.begin("three", [table], None, "", Run(), owner=("trainer-0", 2))

    assert found.frozen
    with pytest.raises(SnapshotLost):
        snapshots.read("one", "user", 0, 1000)


def test_snapshots_of_a_lost_process_are_released(table):
    snapshots = Snapshots()
    snapshots.begin("one", [table], None, "", Run(), owner=("trainer-0", 1))
    read_all(snapshots)

    assert snapshots.openers() == {("trainer-0", 1): 0}
    assert snapshots.drop_worker("trainer-0", 2) == 0
    assert snapshots.drop_worker("trainer-0", 1) == 1
    assert snapshots.openers() == {}
    assert snapshots.begin("two", [table], None, "", Run(), owner=("trainer-1", 5)).frozen

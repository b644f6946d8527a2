"""Checkpoints of a mesh: complete or invisible, the same on any number of servers."""

import itertools
import json
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from gradmesh.engine import optim
from gradmesh.protos.errors import (
    BaseLost,
    CheckpointCorrupt,
    DeadlineExceeded,
    InvalidRequest,
    SnapshotLost,
)
from gradmesh.protos.parameter_server.v1 import parameter_server_pb2
from gradmesh.sdk.checkpoint.manifest import chain_of
from gradmesh.sdk.checkpoint.tensors import map_tensors
from gradmesh.sdk.table.lifetime import Admission, Eviction

DIM = 4
BUCKETS = ("buckets", "clocks", "counters", "uses")


def make_tables(mesh):
    return {
        "dense": mesh.table("dense", rows=500, dim=DIM, optimizer=optim.Adagrad(lr=0.1)),
        "hash": mesh.table("hash", dim=DIM, optimizer=optim.SGD(lr=0.1, momentum=0.9)),
        "lru": mesh.table(
            "lru",
            dim=DIM,
            optimizer=optim.RowwiseAdagrad(lr=0.1),
            eviction=Eviction.lru(),
            max_bytes=4096 * 200,
        ),
        "rare": mesh.table(
            "rare", dim=DIM, optimizer=optim.SGD(lr=0.1), admission=Admission.frequency(3)
        ),
        "half": mesh.table(
            "half", dim=DIM, optimizer=optim.Adagrad(lr=0.1), dtype="bfloat16", rows=100
        ),
    }


def train(tables, seed, count=8):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        for name, table in tables.items():
            ids = rng.integers(0, 100 if name == "half" else 500, 40)
            table.lookup(ids)
            table.push(ids, rng.normal(size=(40, DIM)).astype(np.float32))


def content(folder: Path) -> dict:
    """All rows of a full checkpoint, by table and id, with state and marks."""
    manifest = json.loads((folder / "manifest.json").read_text())
    found = {}
    for table in manifest["tables"]:
        rows = found.setdefault(table["spec"]["name"], {})
        for file in table["files"]:
            arrays = map_tensors(folder / file["path"])
            for key in ("ids", "buckets"):
                for i, id_ in enumerate(arrays.get(key, ())):
                    assert (key, id_) not in rows
                    group = {
                        n: a for n, a in arrays.items() if (n in BUCKETS) == (key == "buckets")
                    }
                    rows[key, int(id_)] = {n: a[i].tobytes() for n, a in group.items()}
    return found


def state_of(mesh, tmp_path, numbers=itertools.count()):  # noqa: B008
    folder = tmp_path / f"state-{next(numbers)}"
    mesh.checkpoint(folder)
    return content(folder)


@pytest.mark.parametrize("servers", [1, 2, 5])
def test_restore_on_another_number_of_servers_trains_to_the_same_bits(
    make_cluster, tmp_path, servers
):
    old = make_cluster(parameter_servers=3).connect()
    tables = make_tables(old)
    train(tables, seed=1)
    progress = []

    written = old.checkpoint(tmp_path / "a", progress=lambda *rows: progress.append(rows))
    new = make_cluster(parameter_servers=servers).connect()
    restored = new.restore(tmp_path / "a")

    assert restored == written
    assert progress[-1][0] == written.rows
    assert state_of(new, tmp_path) == content(tmp_path / "a")
    train(tables, seed=2)
    train(make_tables(new), seed=2)
    assert state_of(new, tmp_path) == state_of(old, tmp_path)


def test_chain_of_additions_equals_a_full_checkpoint(make_cluster, tmp_path):
    old = make_cluster(parameter_servers=2).connect()
    tables = make_tables(old)
    train(tables, seed=1)
    old.checkpoint(tmp_path / "a")
    train(tables, seed=2, count=1)
    old.checkpoint(tmp_path / "b", base=tmp_path / "a")
    train(tables, seed=3, count=1)
    added = old.checkpoint(tmp_path / "c", base=tmp_path / "b")
    whole = old.checkpoint(tmp_path / "d")

    new = make_cluster(parameter_servers=3).connect()
    new.restore(tmp_path / "c")

    assert added.rows < whole.rows / 2
    assert state_of(new, tmp_path) == content(tmp_path / "d")


def test_base_must_be_the_newest(make_cluster, tmp_path):
    mesh = make_cluster().connect()
    train(make_tables(mesh), seed=1, count=1)
    mesh.checkpoint(tmp_path / "a")
    mesh.checkpoint(tmp_path / "b")

    with pytest.raises(BaseLost, match="make a full checkpoint"):
        mesh.checkpoint(tmp_path / "c", base=tmp_path / "a")

    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]
    mesh.checkpoint(tmp_path / "c", base=tmp_path / "b")


def test_files_are_safetensors(make_cluster, tmp_path):
    mesh = make_cluster().connect()
    table = mesh.table("user", rows=10, dim=2, optimizer=optim.Adagrad(lr=0.1))
    rows = table.lookup(np.arange(10))

    manifest = mesh.checkpoint(tmp_path / "a")

    files = [load_file(tmp_path / "a" / f.path) for f in manifest.tables[0].files]
    ids = np.concatenate([file["ids"] for file in files])
    assert sorted(ids) == list(range(10))
    assert np.array_equal(np.concatenate([file["rows"] for file in files]), rows[ids])
    assert manifest.tables[0].table == table.spec


def test_every_flipped_bit_is_found_and_nothing_changed(make_cluster, tmp_path):
    mesh = make_cluster().connect()
    tables = make_tables(mesh)
    train(tables, seed=1, count=2)
    mesh.checkpoint(tmp_path / "a")
    train(tables, seed=2, count=1)
    before = state_of(mesh, tmp_path)
    rng = np.random.default_rng(1)

    for path in sorted(p for p in (tmp_path / "a").rglob("*") if p.is_file()):
        good = path.read_bytes()
        places = range(len(good)) if path.name == "COMPLETE" else rng.integers(0, len(good), 6)
        for place in places:
            bad = bytearray(good)
            bad[place] ^= 1 << int(rng.integers(8))
            path.write_bytes(bad)
            with pytest.raises(CheckpointCorrupt, match=path.name.replace("COMPLETE", "manifest")):
                mesh.restore(tmp_path / "a")
        path.write_bytes(good)

    assert state_of(mesh, tmp_path) == before
    mesh.restore(tmp_path / "a")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_flipped_bit_in_every_single_byte_is_found_and_its_file_is_named(make_cluster, tmp_path):
    mesh = make_cluster(parameter_servers=2).connect()
    table = mesh.table("user", dim=2, optimizer=optim.Adagrad(lr=0.5))
    table.push(np.arange(8), np.ones((8, 2), np.float32))
    mesh.checkpoint(tmp_path / "a")
    table.push(np.arange(3), np.ones((3, 2), np.float32))
    mesh.checkpoint(tmp_path / "b", base=tmp_path / "a")
    rng = np.random.default_rng(1)

    files = sorted(p for p in tmp_path.rglob("*") if p.is_file())
    for path in files:
        good = path.read_bytes()
        named = path.with_name("manifest.json") if path.name == "COMPLETE" else path
        for place, bit in enumerate(rng.integers(8, size=len(good))):
            bad = bytearray(good)
            bad[place] ^= 1 << int(bit)
            path.write_bytes(bad)
            with pytest.raises(CheckpointCorrupt) as found:
                chain_of(tmp_path / "b")
            assert str(named) in str(found.value), (path, place, bit)
        path.write_bytes(good)

    assert len(files) == 8
    chain_of(tmp_path / "b")


@pytest.mark.parametrize("missing", ["COMPLETE", "manifest.json", "data"])
def test_incomplete_is_refused(make_cluster, tmp_path, missing):
    mesh = make_cluster().connect()
    train(make_tables(mesh), seed=1, count=1)
    manifest = mesh.checkpoint(tmp_path / "a")
    name = manifest.tables[0].files[0].path if missing == "data" else missing
    (tmp_path / "a" / name).unlink()

    with pytest.raises(CheckpointCorrupt, match=Path(name).name):
        mesh.restore(tmp_path / "a")


def test_other_tables_are_refused_and_nothing_changed(make_cluster, tmp_path):
    old, new = make_cluster().connect(), make_cluster().connect()
    old.table("first", rows=10, dim=3, optimizer=optim.SGD(lr=1.0))
    old.table("user", rows=10, dim=3, optimizer=optim.SGD(lr=1.0))
    old.checkpoint(tmp_path / "a")
    table = new.table("user", rows=10, dim=3, optimizer=optim.SGD(lr=0.5))
    table.push([1], np.ones((1, 3), np.float32))
    rows = table.lookup([1])

    with pytest.raises(CheckpointCorrupt, match="'user' is not the mesh's: optimizer"):
        new.restore(tmp_path / "a")

    assert np.array_equal(table.lookup([1]), rows)
    assert [s.name for s in new.connection.coordinator.list_tables(new.connection.deadline())] == [
        "user"
    ]


def test_folder_in_use_is_refused(make_cluster, tmp_path):
    mesh = make_cluster().connect()
    with pytest.raises(InvalidRequest, match="no tables"):
        mesh.checkpoint(tmp_path / "a")
    make_tables(mesh)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "mine").touch()

    with pytest.raises(InvalidRequest, match="a folder of its own"):
        mesh.checkpoint(tmp_path / "a")


def test_failure_leaves_nothing_behind(make_cluster, tmp_path):
    cluster = make_cluster()
    mesh = cluster.connect()
    train(make_tables(mesh), seed=1, count=1)

    def lose(done, total):
        for store in cluster.stores:
            store.checkpointing.snapshots.release_idle(-1)

    with pytest.raises(SnapshotLost):
        mesh.checkpoint(tmp_path / "a", progress=lose)
    with pytest.raises(DeadlineExceeded):
        mesh.checkpoint(tmp_path / "b", timeout_s=1e-6)

    assert list(tmp_path.iterdir()) == []
    mesh.checkpoint(tmp_path / "a")


def eventually_pushed(cluster, begun, pushed):
    """Let every read of a snapshot wait for two more pushes."""

    def slowed(read):
        def read_late(*args):
            begun.set()
            count, until = len(pushed), time.monotonic() + 10
            while len(pushed) < count + 2 and time.monotonic() < until:
                threading.Event().wait(0.001)
            return read(*args)

        return read_late

    for store in cluster.stores:
        store.checkpointing.snapshots.read = slowed(store.checkpointing.snapshots.read)


def test_pushes_and_lookups_continue_during_a_checkpoint(make_cluster, tmp_path):
    cluster = make_cluster(parameter_servers=2)
    mesh, other = cluster.connect(), cluster.connect()
    table = mesh.table("user", dim=DIM, optimizer=optim.SGD(lr=1.0))
    ids = np.arange(2000)
    table.push(ids, np.ones((ids.size, DIM), np.float32))
    before = state_of(mesh, tmp_path)["user"]
    begun, ended = threading.Event(), threading.Event()
    pushed = []

    def push():
        same = other.open_table("user")
        rng = np.random.default_rng(0)
        begun.wait(120)
        while not ended.is_set():
            some = np.unique(rng.integers(0, 4000, 300))
            same.lookup(some)
            same.push(some, np.ones((some.size, DIM), np.float32))
            pushed.append(1)

    thread = threading.Thread(target=push)
    thread.start()
    eventually_pushed(cluster, begun, pushed)
    try:
        mesh.checkpoint(tmp_path / "a")
    finally:
        ended.set()
        thread.join(10)

    assert len(pushed) >= 2
    assert content(tmp_path / "a")["user"] == before


def test_an_interrupted_restore_can_be_abandoned(make_cluster):
    cluster = make_cluster(parameter_servers=2)
    mesh = cluster.connect()
    table = mesh.table("t", rows=50, dim=DIM, optimizer=optim.SGD(lr=1.0))
    first = table.lookup(np.arange(50))
    table.push(np.arange(50), np.ones((50, DIM), np.float32))
    begin = parameter_server_pb2.BeginRestoreRequest(restore="lost", tables=["t"])
    shards = mesh.connection.servers.shard_map(mesh.connection.deadline())
    mesh.connection.servers.call_each(
        shards, "BeginRestore", {0: begin, 1: begin}, mesh.connection.deadline()
    )
    with pytest.raises(DeadlineExceeded, match="gradmesh table reset"):
        table.lookup([1], timeout_s=2.0)

    mesh.reset_table(mesh.open_table("t"))

    np.testing.assert_array_equal(table.lookup(np.arange(50)), first)

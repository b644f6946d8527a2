"""Checkpoints in a folder and at a URL: the same for writers and readers."""

import uuid

import numpy as np
import pytest

from gradmesh.engine import optim
from gradmesh.protos.errors import CheckpointCorrupt, InvalidRequest
from gradmesh.sdk.checkpoint.manifest import chain_of
from gradmesh.sdk.checkpoint.store import open_checkpoint, open_store


@pytest.fixture(params=["folder", "url"])
def where(request, tmp_path):
    return str(tmp_path / "all") if request.param == "folder" else f"memory://{uuid.uuid4().hex}/x"


@pytest.fixture
def place(where):
    opened = open_store(where)
    yield opened
    opened.close()


def fill(mesh, place, count):
    """Write a full checkpoint and some that add to it; return the rows after each."""
    table = mesh.table("user", dim=4, optimizer=optim.Adagrad(0.1))
    rows, base = [], None
    for step in range(count):
        table.push([step, 99], np.ones((2, 4), np.float32))
        path = place.free_path(step)
        mesh.checkpoint(path, base=base)
        # At a URL the base is not here any more; its manifest is all that is needed.
        place.publish(path)
        found = place.checkpoints()[-1]
        base = place.fetch(found)
        rows.append(table.lookup(np.arange(100)))
    return rows


def test_a_chain_comes_back(cluster, place, where):
    mesh = cluster.connect()
    rows = fill(mesh, place, 3)

    found = place.checkpoints()
    other, kept = open_checkpoint(f"{where}/{found[1].path.name}")
    mesh.restore(other.fetch(kept))
    other.close()

    assert [kept.path.name for kept in found] == [f"step-{i:09}" for i in range(3)]
    np.testing.assert_array_equal(mesh.open_table("user").lookup(np.arange(100)), rows[1])
    assert place.newest_run() is None
    assert place.free_path(2).name == "step-000000002-2"


def test_prune_keeps_what_is_needed(cluster, place):
    fill(cluster.connect(), place, 3)

    assert place.prune(1) == []
    with pytest.raises(InvalidRequest):
        place.prune(0)
    assert len(chain_of(place.fetch(place.checkpoints()[-1]))) == 3


def test_a_missing_checkpoint_is_named(place, where):
    assert place.checkpoints() == []
    with pytest.raises(CheckpointCorrupt, match="nothing"):
        place.find("nothing")


def test_a_half_copied_checkpoint_is_invisible(cluster, tmp_path, monkeypatch):
    url = f"memory://{uuid.uuid4().hex}/x"
    place, mesh = open_store(url), cluster.connect()
    fill(mesh, place, 1)
    path = place.free_path(7)
    mesh.checkpoint(path)
    copy, done = place._files.put_file, []

    def fail(source, target, **options):
        if len(done) == 2:
            raise OSError("the network is gone")
        done.append(target)
        return copy(source, target, **options)

    monkeypatch.setattr(place._files, "put_file", fail)
    with pytest.raises(OSError, match="the network is gone"):
        place.publish(path)

    assert len(place.checkpoints()) == 1
    place.close()


def test_an_unknown_url_scheme_is_refused():
    with pytest.raises(InvalidRequest, match="gradmesh\\[remote\\]"):
        open_store("nowhere://x/y")

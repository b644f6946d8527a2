"""`gradmesh checkpoint`: a folder of checkpoints from the command line."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file

from gradmesh.cli.checkpoint import checkpoint
from gradmesh.engine import optim
from gradmesh.protos.coordinator.v1 import status_pb2
from gradmesh.protos.errors import CheckpointCorrupt, NotMember
from gradmesh.sdk.checkpoint.store import LocalStore


@pytest.fixture
def run(cluster):
    def call(*arguments, mesh=True):
        where = ["--coordinator", cluster.address] if mesh else []
        return CliRunner().invoke(checkpoint, [*arguments, *where], standalone_mode=False)

    return call


@pytest.fixture
def chain(cluster, tmp_path) -> Path:
    """Two chains: a full one with two that add to it, then a full one with one."""
    mesh = cluster.connect()
    fixed = mesh.table("fixed", rows=50, dim=4, optimizer=optim.Adagrad(0.1))
    hashed = mesh.table("hashed", dim=4, optimizer=optim.SGD(0.1))
    base = None
    for number in range(5):
        fixed.push([number], np.ones((1, 4), np.float32))
        hashed.push([number, 2**40], np.ones((2, 4), np.float32))
        base = None if number == 3 else base
        mesh.checkpoint(tmp_path / "all" / f"c{number}", base=base)
        base = tmp_path / "all" / f"c{number}"
    return tmp_path / "all"


def test_ls_and_show(chain, run):
    listed = json.loads(run("ls", str(chain), "--json", mesh=False).output)
    shown = run("show", str(chain / "c2"), mesh=False)

    assert [line["name"] for line in listed] == [f"c{i}" for i in range(5)]
    assert [line["base"] for line in listed] == [None, "../c0", "../c1", None, "../c3"]
    assert "chain:       c0, c1, c2" in shown.output
    assert "every file is as it was written" in shown.output


def test_prune_keeps_the_newest_and_what_they_add_to(chain, run):
    (chain / ".c9.0123abcd.partial").mkdir()

    pruned = run("prune", str(chain), "--keep", "1", "--partial", mesh=False)

    assert pruned.exception is None
    assert sorted(path.name for path in chain.iterdir()) == ["c3", "c4"]
    assert LocalStore(chain).prune(1) == []


def test_prune_keeps_what_is_young_enough(chain, run, monkeypatch):
    created = [kept.manifest.created for kept in LocalStore(chain).checkpoints()]

    early = run("prune", str(chain), "--keep", "1", "--keep-s", "3600", mesh=False)
    monkeypatch.setattr("gradmesh.sdk.checkpoint.store.time.time", lambda: created[3] + 60)
    assert LocalStore(chain).prune(1, created[3] + 60 - created[2]) == []
    late = LocalStore(chain).prune(1, 60)

    assert early.output == ""
    assert late == ["c2", "c1", "c0"]


def test_a_damaged_manifest_stops_prune_before_anything_goes(chain):
    (chain / "c1" / "manifest.json").write_text("{}")

    with pytest.raises(CheckpointCorrupt, match="c1"):
        LocalStore(chain).prune(1)

    assert len(list(chain.iterdir())) == 5
    assert LocalStore(chain).newest_run() is None  # they hold tables only


def test_restore_brings_the_tables_back(chain, cluster, run):
    mesh = cluster.connect()
    before = mesh.open_table("fixed").lookup(np.arange(50))
    mesh.open_table("fixed").push(np.arange(50), np.ones((50, 4), np.float32))

    done = run("restore", str(chain / "c4"))

    assert done.exception is None
    np.testing.assert_array_equal(mesh.open_table("fixed").lookup(np.arange(50)), before)


def test_export_has_all_rows_used_or_not(chain, cluster, run, tmp_path):
    mesh = cluster.connect()

    done = run("export", str(chain / "c4"), str(tmp_path / "model.safetensors"), mesh=False)

    read = load_file(tmp_path / "model.safetensors")
    assert done.exception is None
    np.testing.assert_array_equal(
        read["embeddings.fixed.weight"], mesh.open_table("fixed").lookup(np.arange(50))
    )
    ids = read["embeddings.hashed.ids"]
    assert ids.tolist() == [0, 1, 2, 3, 4, 2**40]
    np.testing.assert_array_equal(
        read["embeddings.hashed.weight"], mesh.open_table("hashed").lookup(ids)
    )


def test_save_without_trainers_says_so(run):
    assert isinstance(run("save").exception, NotMember)


def test_save_waits_for_the_trainers_answer(cluster, run, eventually):
    trainer = cluster.connect("trainer-0", role="trainer")
    trainer.connection.join_trainers(10)
    number = trainer.connection.coordinator.request_checkpoint(trainer.connection.deadline())
    eventually(lambda: trainer.connection.checkpoint_request == number)
    report = status_pb2.Checkpoint(path="here", step=7, request=number + 1)
    trainer.connection.coordinator.report_checkpoint(
        trainer.name, trainer.connection.incarnation, report, trainer.connection.deadline()
    )

    again = trainer.connection.coordinator.request_checkpoint(trainer.connection.deadline())
    failed = status_pb2.Checkpoint(error="the disk is full", request=again)
    trainer.connection.coordinator.report_checkpoint(
        trainer.name, trainer.connection.incarnation, failed, trainer.connection.deadline()
    )
    status = trainer.connection.coordinator.get_status(trainer.connection.deadline())

    assert again == number + 2
    assert "the newest checkpoint failed: the disk is full" in status.warnings


def test_list_of_nothing(tmp_path):
    assert LocalStore(tmp_path / "nowhere").checkpoints() == []

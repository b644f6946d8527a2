"""`gradmesh table …` against a mesh in this process."""

import json

import numpy as np
import pytest

from gradmesh.cli import main
from gradmesh.engine import optim


@pytest.fixture
def mesh(make_cluster):
    mesh = make_cluster(parameter_servers=2).connect()
    table = mesh.table("user", dim=4, optimizer=optim.Adagrad(lr=0.5))
    table.push(np.arange(100), np.ones((100, 4), np.float32))
    mesh.table("item", rows=50, dim=8, optimizer=optim.SGD(lr=0.5), dtype="float16")
    return mesh


@pytest.fixture
def run(mesh, capsys):
    def call(*words):
        where = ["--coordinator", mesh.connection.coordinator.address]
        code = main(["table", *map(str, words), *where])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return call


def test_ls_shows_all_tables(run):
    code, out, _ = run("ls")
    found = json.loads(run("ls", "--json")[1])

    assert code == 0
    assert "user" in out
    assert "adagrad(" in out
    assert [table["spec"]["name"] for table in found] == ["item", "user"]


def test_inspect_shows_each_server(run):
    code, out, _ = run("inspect", "user")
    found = json.loads(run("inspect", "user", "--json")[1])

    assert code == 0
    for word in ("hash", "float32", "ps-0", "ps-1", "expected row bytes", "evicted", "steps"):
        assert word in out
    assert found["spec"]["optimizer"].startswith("adagrad(")
    assert sum(server["rows"] for server in found["servers"].values()) == 100


@pytest.mark.parametrize("rows", [None, 500_000], ids=["hash", "dense"])
def test_inspect_shows_the_computed_memory_of_rows(run, mesh, rows):
    table = mesh.table("full", rows=rows, dim=64, optimizer=optim.RowwiseAdagrad())
    for ids in np.array_split(np.arange(500_000), 10):
        table.lookup(ids)

    out = run("inspect", "full")[1]
    found = json.loads(run("inspect", "full", "--json")[1])

    assert "expected row bytes" in out
    assert "actual row bytes" in out
    assert sum(server["rows"] for server in found["servers"].values()) == 500_000
    for server in found["servers"].values():
        # 64 numbers, one of state; in a hash table an entry of the index beside them.
        assert server["expected_row_bytes"] == pytest.approx(
            260 + (20 if rows is None else 0), abs=1
        )
        assert server["actual_row_bytes"] <= 1.15 * server["expected_row_bytes"]
        assert server["actual_row_bytes"] == pytest.approx(server["bytes"] / server["rows"])


def test_checkpoint_and_restore(run, mesh, tmp_path):
    table = mesh.open_table("user")
    rows = table.lookup(np.arange(100))

    assert run("checkpoint", tmp_path / "a")[0] == 0
    table.push(np.arange(10), np.ones((10, 4), np.float32))
    code, out, _ = run("checkpoint", tmp_path / "b", "--base", tmp_path / "a")
    assert code == 0
    assert "adding to ../a" in out
    assert " 10 rows" in out
    code, out, _ = run("restore", tmp_path / "a")

    assert code == 0
    assert "2 servers" in out
    np.testing.assert_array_equal(table.lookup(np.arange(100)), rows)


def test_damage_is_reported_in_one_line(run, tmp_path):
    run("checkpoint", tmp_path / "a", "--table", "user")
    (tmp_path / "a" / "COMPLETE").unlink()

    code, _, err = run("restore", tmp_path / "a")

    assert code == 4
    assert err.startswith("error: checkpoint:")
    assert "COMPLETE" in err
    assert len(err.splitlines()) == 1


def test_export_and_import_into_a_new_table(run, mesh, tmp_path):
    assert run("export", "user", tmp_path / "user.npz")[0] == 0

    code, out, _ = run(
        "import", "copy", tmp_path / "user.npz", "--create", "--optimizer", "adam", "--lr", "0.1"
    )

    assert code == 0
    assert "100 rows" in out
    ids = np.arange(100)
    copied = mesh.open_table("copy").lookup(ids)
    np.testing.assert_array_equal(copied, mesh.open_table("user").lookup(ids))


def test_bad_file_makes_no_table(run, mesh, tmp_path):
    np.savez(tmp_path / "bad.npz", ids=np.array([1, 1]), rows=np.ones((2, 4), np.float32))

    code, _, err = run("import", "copy", tmp_path / "bad.npz", "--create")

    assert code == 2
    assert "appears twice" in err
    specs = mesh.connection.coordinator.list_tables(mesh.connection.deadline())
    assert "copy" not in [spec.name for spec in specs]


def test_without_a_cluster_it_says_so(tmp_path, capsys):
    code = main(["table", "ls", "--state", str(tmp_path / "none")])

    assert code != 0
    assert "error:" in capsys.readouterr().err

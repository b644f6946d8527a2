"""A table to a file and back, in every format."""

import sys

import numpy as np
import pyarrow.parquet
import pytest
from safetensors.numpy import load_file, save_file

from gradmesh.engine import optim
from gradmesh.protos.errors import DeadlineExceeded, IdOutOfRange, InvalidRequest

FORMATS = ["safetensors", "npz", "parquet"]
DIM = 4


def read(path):
    if path.suffix == ".parquet":
        table = pyarrow.parquet.read_table(path)
        rows = np.array(table["row"].to_pylist(), np.float32).reshape(-1, DIM)
        return table["id"].to_numpy(), rows
    found = load_file(path) if path.suffix == ".safetensors" else dict(np.load(path))
    return found["ids"], found["rows"]


@pytest.fixture
def mesh(make_cluster):
    return make_cluster(parameter_servers=2).connect()


@pytest.fixture
def table(mesh):
    return mesh.table("user", dim=DIM, optimizer=optim.Adagrad(lr=0.1))


def fill(table, count=3000):
    ids = np.random.default_rng(0).choice(1 << 40, count, replace=False) - (1 << 39)
    table.push(ids, np.ones((count, DIM), np.float32))
    return np.sort(ids)


@pytest.mark.parametrize("kind", FORMATS)
def test_export_is_sorted_and_complete(mesh, table, tmp_path, kind):
    ids = fill(table)
    progress = []

    count = mesh.export_table(
        table, tmp_path / f"user.{kind}", progress=lambda *rows: progress.append(rows)
    )

    found = read(tmp_path / f"user.{kind}")
    assert count == ids.size
    assert progress[-1] == (count, count)
    np.testing.assert_array_equal(found[0], ids)
    np.testing.assert_array_equal(found[1], table.lookup(ids))
    assert [p.name for p in tmp_path.iterdir()] == [f"user.{kind}"]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_import_restores_the_same_rows(make_cluster, tmp_path, kind, dtype):
    options = {"dim": DIM, "dtype": dtype, "optimizer": optim.SGD(lr=0.1)}
    old_mesh = make_cluster(parameter_servers=2).connect()
    new_mesh = make_cluster(parameter_servers=1).connect()
    old = old_mesh.table("user", **options)
    new = new_mesh.table("user", seed=9, **options)
    ids = fill(old, 500)
    path = tmp_path / f"user.{kind}"
    old_mesh.export_table(old, path)

    assert new_mesh.import_table(new, path) == 500

    np.testing.assert_array_equal(new.lookup(ids), old.lookup(ids))
    assert new_mesh.export_table(new, tmp_path / f"again.{kind}") == 500
    np.testing.assert_array_equal(read(path)[0], ids) if dtype != "bfloat16" else None


@pytest.mark.parametrize("kind", FORMATS)
def test_empty_table_round_trips(mesh, table, tmp_path, kind):
    assert mesh.export_table(table, tmp_path / f"user.{kind}") == 0
    assert mesh.import_table(table, tmp_path / f"user.{kind}") == 0


def good():
    return {"ids": np.arange(5), "rows": np.ones((5, DIM), np.float32)}


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"ids": np.array([0, 1, 2, 3, 3])}, "id 3 appears twice"),
        ({"ids": np.arange(5, dtype=np.int32)}, "expected int64"),
        ({"ids": np.arange(4)}, "for 4 ids"),
        ({"rows": np.ones((5, 3), np.float32)}, "rows of 3 float32"),
        ({"rows": np.ones((5, DIM), np.int64)}, "rows of 4 int64"),
        ({"rows": np.full((5, DIM), np.nan, np.float32)}, "not finite"),
        ({"rows": np.full((5, DIM), 1e300)}, "not finite as float32"),
    ],
)
@pytest.mark.parametrize("kind", ["safetensors", "npz"])
def test_file_that_does_not_fit_changes_nothing(mesh, table, tmp_path, kind, change, match):
    path = tmp_path / f"bad.{kind}"
    save = save_file if kind == "safetensors" else lambda arrays, file: np.savez(file, **arrays)
    save(good() | change, path)

    with pytest.raises(InvalidRequest, match=match):
        mesh.import_table(table, path)

    assert mesh.export_table(table, tmp_path / "all.npz") == 0


def test_foreign_files_are_refused(mesh, table, tmp_path):
    for kind in FORMATS:
        (tmp_path / f"noise.{kind}").write_bytes(b"\xff" * 100)
        with pytest.raises(InvalidRequest, match="not a file of ids and rows"):
            mesh.import_table(table, tmp_path / f"noise.{kind}")
        with pytest.raises(FileNotFoundError):
            mesh.import_table(table, tmp_path / f"missing.{kind}")
    with pytest.raises(InvalidRequest, match="must end in"):
        mesh.export_table(table, tmp_path / "user.csv")


def test_truncated_files_are_refused(mesh, table, tmp_path):
    fill(table, 200)
    for kind in FORMATS:
        path = tmp_path / f"user.{kind}"
        mesh.export_table(table, path)
        path.write_bytes(path.read_bytes()[:-40])
        with pytest.raises(InvalidRequest, match="not a file of ids and rows"):
            mesh.import_table(table, path)


def test_ids_beyond_a_dense_table_are_refused(make_cluster, tmp_path):
    mesh = make_cluster().connect()
    table = mesh.table("user", rows=4, dim=DIM, optimizer=optim.SGD(lr=0.1))
    save_file(good(), tmp_path / "a.safetensors")

    with pytest.raises(IdOutOfRange, match="id 4"):
        mesh.import_table(table, tmp_path / "a.safetensors")

    assert mesh.export_table(table, tmp_path / "all.npz") == 0


def test_imported_rows_begin_with_fresh_state(make_cluster, tmp_path):
    mesh = make_cluster().connect()
    table = mesh.table("user", rows=9, dim=DIM, optimizer=optim.Adagrad(lr=0.1))
    table.push(np.arange(5), np.ones((5, DIM), np.float32))
    save_file(good(), tmp_path / "a.safetensors")

    mesh.import_table(table, tmp_path / "a.safetensors")
    table.push([0], np.ones((1, DIM), np.float32))

    np.testing.assert_allclose(table.lookup([0, 1]), [[0.9] * DIM, [1.0] * DIM], rtol=1e-6)


def test_without_pyarrow_the_error_names_the_remedy(mesh, table, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(InvalidRequest, match=r"gradmesh\[data\]"):
        mesh.export_table(table, tmp_path / "a.parquet")


def test_export_that_fails_leaves_nothing_behind(mesh, table, tmp_path):
    fill(table, 100)

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mesh.export_table(table, tmp_path / "a.npz", progress=stop)
    with pytest.raises(DeadlineExceeded):
        mesh.export_table(table, tmp_path / "a.npz", timeout_s=1e-6)

    assert list(tmp_path.iterdir()) == []
    mesh.export_table(table, tmp_path / "a.npz")

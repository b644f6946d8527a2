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
def table(make_cluster):
    mesh = make_cluster(parameter_servers=2).connect()
    return mesh.table("user", dim=DIM, optimizer=optim.Adagrad(lr=0.1))


def fill(table, count=3000):
    ids = np.random.default_rng(0).choice(1 << 40, count, replace=False) - (1 << 39)
    table.push(ids, np.ones((count, DIM), np.float32))
    return np.sort(ids)


@pytest.mark.parametrize("kind", FORMATS)
def test_export_is_sorted_and_whole(table, tmp_path, kind):
    ids = fill(table)
    told = []

    count = table.export(tmp_path / f"user.{kind}", progress=lambda *rows: told.append(rows))

    found = read(tmp_path / f"user.{kind}")
    assert count == ids.size
    assert told[-1] == (count, count)
    np.testing.assert_array_equal(found[0], ids)
    np.testing.assert_array_equal(found[1], table.lookup(ids))
    assert [p.name for p in tmp_path.iterdir()] == [f"user.{kind}"]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_import_brings_the_same_rows(make_cluster, tmp_path, kind, dtype):
    options = {"dim": DIM, "dtype": dtype, "optimizer": optim.SGD(lr=0.1)}
    old = make_cluster(parameter_servers=2).connect().table("user", **options)
    new = make_cluster(parameter_servers=1).connect().table("user", seed=9, **options)
    ids = fill(old, 500)
    path = tmp_path / f"user.{kind}"
    old.export(path)

    assert new.import_rows(path) == 500

    np.testing.assert_array_equal(new.lookup(ids), old.lookup(ids))
    assert new.export(tmp_path / f"again.{kind}") == 500
    np.testing.assert_array_equal(read(path)[0], ids) if dtype != "bfloat16" else None


@pytest.mark.parametrize("kind", FORMATS)
def test_empty_table_goes_through(table, tmp_path, kind):
    assert table.export(tmp_path / f"user.{kind}") == 0
    assert table.import_rows(tmp_path / f"user.{kind}") == 0


def good():
    return {"ids": np.arange(5), "rows": np.ones((5, DIM), np.float32)}


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"ids": np.array([0, 1, 2, 3, 3])}, "id 3 comes twice"),
        ({"ids": np.arange(5, dtype=np.int32)}, "expected int64"),
        ({"ids": np.arange(4)}, "for 4 ids"),
        ({"rows": np.ones((5, 3), np.float32)}, "rows of 3 float32"),
        ({"rows": np.ones((5, DIM), np.int64)}, "rows of 4 int64"),
        ({"rows": np.full((5, DIM), np.nan, np.float32)}, "no finite number"),
        ({"rows": np.full((5, DIM), 1e300)}, "no finite number as float32"),
    ],
)
@pytest.mark.parametrize("kind", ["safetensors", "npz"])
def test_file_that_does_not_fit_changes_nothing(table, tmp_path, kind, change, match):
    path = tmp_path / f"bad.{kind}"
    save = save_file if kind == "safetensors" else lambda arrays, file: np.savez(file, **arrays)
    save(good() | change, path)

    with pytest.raises(InvalidRequest, match=match):
        table.import_rows(path)

    assert table.export(tmp_path / "all.npz") == 0


def test_foreign_files_are_refused(table, tmp_path):
    for kind in FORMATS:
        (tmp_path / f"noise.{kind}").write_bytes(b"\xff" * 100)
        with pytest.raises(InvalidRequest, match="no file of ids and rows"):
            table.import_rows(tmp_path / f"noise.{kind}")
        with pytest.raises(FileNotFoundError):
            table.import_rows(tmp_path / f"missing.{kind}")
    with pytest.raises(InvalidRequest, match="must end in"):
        table.export(tmp_path / "user.csv")


def test_truncated_files_are_refused(table, tmp_path):
    fill(table, 200)
    for kind in FORMATS:
        path = tmp_path / f"user.{kind}"
        table.export(path)
        path.write_bytes(path.read_bytes()[:-40])
        with pytest.raises(InvalidRequest, match="no file of ids and rows"):
            table.import_rows(path)


def test_ids_beyond_a_dense_table_are_refused(make_cluster, tmp_path):
    table = make_cluster().connect().table("user", rows=4, dim=DIM, optimizer=optim.SGD(lr=0.1))
    save_file(good(), tmp_path / "a.safetensors")

    with pytest.raises(IdOutOfRange, match="id 4"):
        table.import_rows(tmp_path / "a.safetensors")

    assert table.export(tmp_path / "all.npz") == 0


def test_imported_rows_begin_with_fresh_state(make_cluster, tmp_path):
    table = make_cluster().connect().table("user", rows=9, dim=DIM, optimizer=optim.Adagrad(lr=0.1))
    table.push(np.arange(5), np.ones((5, DIM), np.float32))
    save_file(good(), tmp_path / "a.safetensors")

    table.import_rows(tmp_path / "a.safetensors")
    table.push([0], np.ones((1, DIM), np.float32))

    np.testing.assert_allclose(table.lookup([0, 1]), [[0.9] * DIM, [1.0] * DIM], rtol=1e-6)


def test_without_pyarrow_the_message_says_what_to_do(table, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(InvalidRequest, match=r"gradmesh\[data\]"):
        table.export(tmp_path / "a.parquet")


def test_export_that_fails_leaves_nothing_behind(table, tmp_path):
    fill(table, 100)

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        table.export(tmp_path / "a.npz", progress=stop)
    with pytest.raises(DeadlineExceeded):
        table.export(tmp_path / "a.npz", timeout_s=0.0)

    assert list(tmp_path.iterdir()) == []
    table.export(tmp_path / "a.npz")

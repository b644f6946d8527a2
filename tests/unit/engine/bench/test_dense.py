import json
from pathlib import Path

import pytest

from gradmesh.engine import bench


def test_rows_are_measured_and_written(tmp_path: Path) -> None:
    rows = bench.bench_dense(rows=["small-mlp"], seconds=0.01)
    bench.write_json(rows, tmp_path / "dense.json")

    (row,) = json.loads((tmp_path / "dense.json").read_text())
    assert row["workload"] == "small-mlp"
    assert row["ours"] > 0
    assert row["ratio"] is None
    assert "small-mlp" in bench.table(rows)


def test_peer_is_measured_in_the_same_run() -> None:
    pytest.importorskip("torch")

    (row,) = bench.bench_dense("torch", rows=["small-mlp"], seconds=0.01)

    assert row.peer is not None
    assert row.ratio == pytest.approx(row.peer / row.ours)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="no workloads"):
        bench.bench_dense(rows=["magic"])
    with pytest.raises(ValueError, match="no peer"):
        bench.bench_dense("tensorflow")

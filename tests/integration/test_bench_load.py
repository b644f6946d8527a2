"""`gradmesh bench load`, small."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gradmesh.cli.bench import bench


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_load_is_measured_and_written(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    flags = ["--members", "6", "--clients", "4", "--half-open", "10", "--seconds", "0.2"]

    done = CliRunner().invoke(bench, ["load", *flags, "--json", str(file)], standalone_mode=False)

    assert done.exception is None
    rows = json.loads(file.read_text())
    names = ["unloaded", "idle-members", "half-open", "busy-clients", "after"]
    assert [row["workload"] for row in rows] == names
    assert all(0 < row["ours"] <= row["p99"] for row in rows)
    assert all(row["memory_mib"] > 0 and row["threads"] > 0 for row in rows)
    assert rows[0]["slowdown"] == rows[0]["growth"] == 1

import json
from pathlib import Path

from click.testing import CliRunner

from gradmesh.benchmarks.dense import LOADS
from gradmesh.cli.bench.dense import WORKLOADS, dense


def test_the_workloads_offered_are_those_there_are() -> None:
    assert tuple(LOADS) == WORKLOADS


def test_a_row_is_shown_and_written(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"

    done = CliRunner().invoke(
        dense,
        ["--workload", "small-mlp", "--seconds", "0.01", "--json", str(file)],
        standalone_mode=False,
    )

    assert done.exception is None
    assert "small-mlp" in done.output
    (row,) = json.loads(file.read_text())
    assert row["workload"] == "small-mlp"
    assert row["ours"] > 0
    assert {"peer", "ratio"} <= row.keys()

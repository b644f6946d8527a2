import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gradmesh.cli.bench import bench


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("command", "rows"),
    [("step", ["small-sync"]), ("durability", ["small-os", "small-fsync"])],
)
def test_rows_are_shown_and_written(tmp_path: Path, command, rows) -> None:
    file = tmp_path / "rows.json"

    done = CliRunner().invoke(
        bench,
        [command, "--workload", "small", "--seconds", "0.1", "--json", str(file)],
        standalone_mode=False,
    )

    assert done.exception is None
    written = json.loads(file.read_text())
    assert [row["workload"] for row in written] == rows
    assert all(row["ours"] > 0 and row["peer"] > 0 for row in written)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_checkpoints_are_written_while_steps_are_measured(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"

    done = CliRunner().invoke(
        bench,
        [
            "checkpoint",
            "--workload",
            "small",
            "--every-s",
            "0.2",
            "--turns",
            "2",
            "--json",
            str(file),
        ],
        standalone_mode=False,
    )

    assert done.exception is None
    whole, stall = json.loads(file.read_text())
    assert [whole["workload"], stall["workload"]] == ["small-checkpoint", "small-stall"]
    assert 0 < stall["ours"] < whole["ours"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_server_is_timed_from_its_log_and_from_a_snapshot(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"

    done = CliRunner().invoke(
        bench, ["recovery", "--megabytes", "8", "--json", str(file)], standalone_mode=False
    )

    assert done.exception is None
    rows = json.loads(file.read_text())
    assert [row["workload"] for row in rows] == ["log", "snapshot"]
    assert all(row["ours"] > 0 for row in rows)

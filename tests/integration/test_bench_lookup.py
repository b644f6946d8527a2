"""The lookup benchmark runs and reports, on every lane and with several pairs."""

import json

import pytest
from click.testing import CliRunner

from gradmesh.cli.bench import bench


@pytest.mark.slow
def test_every_lane_is_measured(tmp_path):
    file = tmp_path / "rows.json"
    options = ["--workload", "pull-1,push-64,batch26", "--batch-rows", "100", "--seconds", "0.01"]

    done = CliRunner().invoke(
        bench, ["lookup", *options, "--json", str(file)], standalone_mode=False
    )

    assert done.return_value == 0, done.output
    names = [row["workload"] for row in json.loads(file.read_text())]
    kinds = ("pull-1", "push-64", "batch26")
    assert names == [f"{kind}-{lane}" for kind in kinds for lane in ("shm", "tcp", "stream")]


@pytest.mark.slow
def test_pairs_are_compared_with_one(tmp_path):
    file = tmp_path / "rows.json"
    options = ["--pairs", "2", "--lane", "shm", "--seconds", "0.01"]

    done = CliRunner().invoke(
        bench, ["lookup", *options, "--json", str(file)], standalone_mode=False
    )

    assert done.return_value == 0, done.output
    rows = json.loads(file.read_text())
    assert [row["workload"] for row in rows] == [
        f"{kind}-{count}-shm-2x2" for kind in ("pull", "push") for count in (1024, 65536)
    ]
    assert all(row["rows_s"] > 0 and row["cores"] >= 1 for row in rows)


@pytest.mark.parametrize("option", ["--lane", "--workload"])
def test_unknown_choices_are_refused(option):
    done = CliRunner().invoke(bench, ["lookup", option, "magic"])

    assert done.exit_code == 2
    assert "magic" in done.output

"""The benchmarks of the hybrid step run, and their figures of a trainer's memory hold."""

import json

import pytest
from click.testing import CliRunner

from gradmesh.benchmarks import scale
from gradmesh.benchmarks.hybrid_shape import Shape
from gradmesh.cli.bench import bench


def rows_of(command, tmp_path, *arguments):
    file = tmp_path / "rows.json"
    done = CliRunner().invoke(
        bench, [command, *arguments, "--seconds", "0.1", "--json", str(file)], standalone_mode=False
    )
    assert done.exception is None, done.output
    return json.loads(file.read_text())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_memory_of_a_trainer_does_not_grow_with_the_tables():
    few, many = (
        Shape(name="m", trainers=1, servers=1, tables=4, rows=n, dim=16, hidden=(8,), batch=64)
        for n in (1_000, 1_000_000)
    )

    small, big = scale.run([few, many], 0.1, lambda row: None)

    assert big.table_memory == 4 * 4 * 16 * 1_000_000
    assert big.memory - small.memory < 20e6


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_workload_is_split_into_its_parts(tmp_path):
    (row,) = rows_of("hybrid", tmp_path, "--workload", "seed")

    assert row["workload"] == "seed"
    assert row["peer"] is None
    assert set(row["ours_parts"]) == {"lookup", "forward", "backward", "step", "total"}
    assert row["ours_samples_per_s"] > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_prefetching_is_measured_with_and_without(tmp_path):
    options = ("--lane", "stream", "--batch", "128", "--rows", "1000")
    (row,) = rows_of("prefetch", tmp_path, *options)

    assert row["workload"] == "prefetch-stream"
    assert row["hidden"] == pytest.approx(1 - row["ours"] / row["peer"])

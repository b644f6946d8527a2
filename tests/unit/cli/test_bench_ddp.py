import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gradmesh.benchmarks.ddp import MODELS
from gradmesh.cli.bench.ddp import _MODELS, ddp
from gradmesh.cli.bench.diff import diff


def test_the_models_offered_are_those_there_are() -> None:
    assert tuple(MODELS) == _MODELS


def test_a_set_of_ranks_is_measured_shown_and_written(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    flags = ["--model", "mlp", "--width", "16", "--world", "2", "--batch-size", "4"]
    flags += ["--bucket-mb", "0.01", "--warmup", "1", "--rounds", "3", "--json", str(file)]

    done = CliRunner().invoke(ddp, flags, standalone_mode=False)

    assert done.exception is None
    for words in ("bucket_size: 0.01", "mlp with batch size 4", "no ddp:", "2 CPUs -- 1M/2P:"):
        assert words in done.output
    assert done.output.count("sec/iter") == done.output.count("ex/sec") == 4
    whole = json.loads(file.read_text())
    assert whole["bucket_size"] == 0.01
    (entry,) = whole["benchmark_results"]
    assert (entry["model"], entry["batch_size"]) == ("mlp", 4)
    assert [result["ranks"] for result in entry["result"]] == [[0], [0, 1]]
    assert [len(result["measurements"]) for result in entry["result"]] == [3, 6]


def _file(path: Path, seconds: float, bucket: float) -> Path:
    def result(ranks: int) -> dict[str, object]:
        return {"ranks": list(range(ranks)), "measurements": [seconds] * 10 * ranks}

    entry = {"model": "mlp", "batch_size": 10, "result": [result(1), result(1), result(2)]}
    whole = {"distributed_backend": "shm", "bucket_size": bucket, "benchmark_results": [entry]}
    path.write_text(json.dumps(whole))
    return path


def test_diff_shows_what_is_faster(tmp_path: Path) -> None:
    base, test = _file(tmp_path / "a", 2.0, 25), _file(tmp_path / "b", 1.5, 1)

    done = CliRunner().invoke(diff, [str(base), str(test)], standalone_mode=False)

    assert done.exception is None
    assert "bucket_size" in done.output
    assert "distributed_backend" not in done.output
    assert done.output.count("+25.0%") == 4
    assert "1.500s" in done.output


def test_diff_refuses_other_files(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("[1, 2]")

    done = CliRunner().invoke(diff, [str(other), str(other)])

    assert done.exit_code == 2
    assert "was not written by" in done.output


@pytest.mark.parametrize(
    "flags",
    [
        ["--world", "0"],
        ["--model", "vgg"],
        ["--bucket-mb", "0"],
        ["--against", "torch", "--world", "1"],
        ["--against", "torch", "--model", "resnet50"],
    ],
)
def test_bad_flags_are_refused(flags: list[str]) -> None:
    assert CliRunner().invoke(ddp, flags).exit_code == 2

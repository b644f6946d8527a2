import importlib
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from gradmesh.benchmarks import allreduce, autograd, ddp, dense, lookup, recovery, rpc, step
from gradmesh.benchmarks.hybrid_shape import shapes
from gradmesh.cli import bench_table
from gradmesh.cli.bench import bench


def test_the_names_offered_are_those_there_are() -> None:
    assert tuple(ddp.MODELS) == bench_table.DDP_MODELS
    assert tuple(dense.LOADS) == bench_table.DENSE_WORKLOADS
    assert tuple(shapes(100)) == bench_table.HYBRID_WORKLOADS
    assert step.WORKLOADS == bench_table.STEP_WORKLOADS
    assert recovery.WORKLOADS == bench_table.RECOVERY_WORKLOADS
    assert tuple(load.name for load in lookup.loads()) == bench_table.LOOKUP_WORKLOADS
    assert tuple(load.name for load in rpc.loads()) == bench_table.RPC_WORKLOADS
    assert tuple(load.name for load in autograd.LOADS) == bench_table.AUTOGRAD_WORKLOADS
    assert lookup.LANES == rpc.LANES == bench_table.LANES
    assert (allreduce.BACKENDS, tuple(allreduce.SIZES)) == (
        bench_table.BACKENDS,
        bench_table.SIZES,
    )


@pytest.mark.parametrize("name", bench_table.BENCHMARKS)
def test_a_benchmark_takes_the_options_of_its_command(name: str) -> None:
    benchmark = bench_table.BENCHMARKS[name]
    module, _, function = benchmark.run.partition(":")
    command = getattr(importlib.import_module(f"gradmesh.benchmarks.{module}"), function)
    options = {param.name for param in benchmark.params} - {"file"} | set(benchmark.fixed)

    assert options == inspect.signature(command).parameters.keys() - {"echo"}


def test_help_does_not_import_the_engine() -> None:
    code = (
        "import sys; from gradmesh.cli import main; main(['bench', 'lookup', '--help']); "
        "heavy = {'numpy', 'numba', 'grpc'} & set(sys.modules); "
        "sys.exit(str(sorted(heavy)) if heavy else 0)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)

    assert (done.returncode, done.stderr) == (0, "")


def test_a_set_of_ranks_is_measured_shown_and_written(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    flags = ["--model", "mlp", "--width", "16", "--world", "2", "--batch-size", "4"]
    flags += ["--bucket-mb", "0.01", "--warmup", "1", "--rounds", "3", "--json", str(file)]

    done = CliRunner().invoke(bench, ["ddp", *flags], standalone_mode=False)

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

    done = CliRunner().invoke(bench, ["diff", str(base), str(test)], standalone_mode=False)

    assert done.exception is None
    assert "bucket_size" in done.output
    assert "distributed_backend" not in done.output
    assert done.output.count("+25.0%") == 4
    assert "1.500s" in done.output


def test_diff_refuses_other_files(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("[1, 2]")

    done = CliRunner().invoke(bench, ["diff", str(other), str(other)])

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
    assert CliRunner().invoke(bench, ["ddp", *flags]).exit_code == 2


def test_a_row_of_dense_is_shown_and_written(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"

    done = CliRunner().invoke(
        bench,
        ["dense", "--workload", "small-mlp", "--seconds", "0.01", "--json", str(file)],
        standalone_mode=False,
    )

    assert done.exception is None
    assert "small-mlp" in done.output
    (row,) = json.loads(file.read_text())
    assert row["workload"] == "small-mlp"
    assert row["ours"] > 0
    assert {"peer", "ratio"} <= row.keys()

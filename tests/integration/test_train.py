"""A job from its file to predictions, with the commands that a user types."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import gradmesh as gm
from gradmesh.launch.errors import ClusterFailed
from gradmesh.sdk.process.setting import ConfigError
from gradmesh.trainer.errors import DataError

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "criteo_dlrm"


def gradmesh(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "gradmesh", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=200,
        **options,
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The output of the Criteo example, trained on its sample by two trainers and two servers."""
    folder = tmp_path_factory.mktemp("criteo")
    for name in ("job.toml", "sample.txt"):
        shutil.copy(EXAMPLE / name, folder)

    done = gradmesh("train", folder / "job.toml", "--tensorboard")

    assert done.returncode == 0, done.stderr
    assert "AUC, held out" in done.stdout
    return folder / "run"


@pytest.mark.timeout(600)
def test_training_leaves_metrics_report_and_model(trained):
    lines = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    report = json.loads((trained / "report.json").read_text())

    assert {line["kind"] for line in lines} == {"train", "validation", "result"}
    assert report["figures"]["steps"] == report["figures"]["samples"] / 100
    assert report["figures"]["bad_lines"] == 0
    assert 0.5 < report["figures"]["auc"] < 1
    assert report["settings"]["model"]["name"] == "dlrm"
    assert "<svg" in (trained / "report.html").read_text()
    assert list((trained / "tensorboard").iterdir())


@pytest.mark.timeout(600)
def test_eval_repeats_the_metrics_of_training(trained, tmp_path):
    done = gradmesh("eval", trained, "--json", tmp_path / "figures.json")

    assert done.returncode == 0, done.stderr
    report = json.loads((trained / "report.json").read_text())["figures"]
    figures = json.loads((tmp_path / "figures.json").read_text())
    for name in ("auc", "log_loss", "normalised_entropy", "calibration"):
        assert figures[name] == pytest.approx(report[name], rel=1e-6)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_predict_answers_every_line_in_order(trained, tmp_path):
    lines = (EXAMPLE / "sample.txt").read_text().splitlines()
    bare = tmp_path / "bare.txt"
    bare.write_text("\n".join(line.partition("\t")[2] for line in lines) + "\n")

    text = gradmesh("predict", trained, EXAMPLE / "sample.txt", "--labelled")
    array = gradmesh("predict", trained, bare, "--output", tmp_path / "p.npy")

    assert (text.returncode, array.returncode) == (0, 0), text.stderr + array.stderr
    chances = np.array([float(line) for line in text.stdout.splitlines()], np.float32)
    assert chances.shape == (1000,)
    np.testing.assert_allclose(np.load(tmp_path / "p.npy"), chances, rtol=1e-6)
    clicks = np.array([line[0] == "1" for line in lines])
    assert chances[clicks].mean() > chances[~clicks].mean() + 0.05

    bare.write_text("nonsense\n")
    refused = gradmesh("predict", trained, bare)
    assert refused.returncode == 2
    assert "bare.txt:1: column 1 is not a number" in refused.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_export_writes_plain_files(trained, tmp_path):
    done = gradmesh("export", trained, tmp_path / "plain")

    assert done.returncode == 0, done.stderr
    dense = load_file(tmp_path / "plain" / "dense.safetensors")
    rows = load_file(tmp_path / "plain" / "feature-0.safetensors")
    assert dense["top.layers.0.weight"].shape == (64, 26 * 27 // 2 + 16)
    assert rows["rows"].shape == (rows["ids"].size, 16)
    assert gradmesh("export", trained, tmp_path / "plain").returncode == 2


def test_a_file_that_is_not_a_model_is_named(tmp_path):
    done = gradmesh("eval", tmp_path)

    assert done.returncode == 2
    assert "holds no trained model" in done.stderr


def test_wrong_job_names_every_problem_before_anything_starts(tmp_path):
    file = tmp_path / "job.toml"
    file.write_text('[model]\nname = "dlmr"\n[job]\nstepps = 3\n[data]\nformat = "cirteo"\n')

    done = gradmesh("train", file)

    assert done.returncode == 2
    for text in ("model.name: expected one of dlrm", "job.stepps", "expected one of generated"):
        assert text in done.stderr


@pytest.mark.timeout(600)
def test_training_from_python_equals_the_command_line():
    seen = []
    job = {
        "data": {"rows": [60, 40, 20], "dense_features": 3},
        "model": {"name": "deepfm", "dim": 4, "top": [16]},
        "job": {
            "steps": 60,
            "batch_size": 128,
            "optimizer": "adagrad",
            "learning_rate": 0.1,
            "table_optimizer": "adagrad",
            "table_learning_rate": 0.1,
            "table_schedule": "linear",
            "table_final_learning_rate": 0.01,
            "clip_norm": 5.0,
            "wire_rows": "float16",
            "wire_grads": "bfloat16",
            "eval_every": 10,
            "eval_batches": 20,
            "patience": 3,
        },
    }

    result = gm.train(job, trainers=1, parameter_servers=1, on_metrics=seen.append)

    assert result.output is None
    assert result.figures["auc"] > 0.6
    assert [line["kind"] for line in seen] == [line["kind"] for line in result.history]
    assert {"train", "validation", "result"} == {line["kind"] for line in seen}


def test_python_refuses_bad_settings_at_once(tmp_path):
    with pytest.raises(ConfigError, match=r"job.steps: expected at least 1"):
        gm.train({"job": {"steps": 0}})
    with pytest.raises(ConfigError, match=r"model.item_features: .* each must be one of 0 … 7"):
        gm.train({"model": {"name": "two-tower", "item_features": [99]}})
    with pytest.raises(DataError, match="no file matches"):
        gm.train({"data": {"format": "criteo", "train": [str(tmp_path / "gone")]}})


def test_training_that_diverges_names_the_setting_to_lower():
    job = {
        "data": {"rows": [60, 40, 20], "dense_features": 3},
        "model": {"name": "deepfm", "dim": 4},
        "job": {"batch_size": 64, "table_optimizer": "sgd", "table_learning_rate": 1e6},
    }

    with pytest.raises(ClusterFailed) as caught:
        gm.train(job, trainers=1, parameter_servers=1)

    notes = "\n".join(caught.value.__notes__)
    assert re.search(r"loss of rank 0 is (nan|inf) at step \d+: lower job.table_learning", notes)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_training_that_meets_bad_data_ends_with_the_line(tmp_path):
    lines = (EXAMPLE / "sample.txt").read_text().splitlines()
    lines[700] = "1\t2"
    (tmp_path / "sample.txt").write_text("\n".join(lines))
    shutil.copy(EXAMPLE / "job.toml", tmp_path)

    done = gradmesh(
        "train",
        tmp_path / "job.toml",
        "--data-max-bad-lines=0",
        "--data-readers=1",
        env={**os.environ, "GRADMESH_COORDINATOR_TRAINERS": "1"},
    )

    assert done.returncode == 2
    assert "sample.txt:701: the line ends after column 2; 40 are expected" in done.stderr

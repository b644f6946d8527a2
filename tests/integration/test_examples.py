"""The examples run as their pages say."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(*command, cwd):
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning", *map(str, command)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_sample_is_what_its_script_writes(tmp_path):
    run(EXAMPLES / "criteo_dlrm" / "make_sample.py", tmp_path / "sample.txt", 1000, cwd=tmp_path)

    made = (tmp_path / "sample.txt").read_text()
    assert made == (EXAMPLES / "criteo_dlrm" / "sample.txt").read_text()
    assert {line.count("\t") for line in made.splitlines()} == {39}


@pytest.mark.timeout(600)
def test_movielens(tmp_path):
    rng = np.random.default_rng(0)
    users, movies = rng.standard_normal((60, 2)), rng.standard_normal((40, 2))
    lines = ["userId,movieId,rating,timestamp"]
    for number in range(4000):
        user, movie = rng.integers(0, 60), rng.integers(0, 40)
        liking = users[user] @ movies[movie] + 0.3 * rng.standard_normal()
        lines.append(f"{user + 1},{movie + 1},{4.5 if liking > 0 else 2.0},{number}")
    (tmp_path / "ratings.csv").write_text("\n".join(lines) + "\n")
    shutil.copy(EXAMPLES / "movielens" / "job.toml", tmp_path)

    run("-m", "gradmesh", "train", "job.toml", "--epochs", "8", cwd=tmp_path)

    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["figures"]["auc"] > 0.7
    assert (tmp_path / "vocabulary.safetensors").exists()


@pytest.mark.timeout(600)
def test_custom_model_trains():
    said = run("train.py", cwd=EXAMPLES / "custom_model")

    assert "step 100: AUC 0." in said
    assert ", at best 0." in said


@pytest.mark.timeout(600)
def test_two_workers():
    said = run("two_workers.py", cwd=EXAMPLES / "two_workers")

    assert "worker0: both tensors on worker1 decreased by 0.05 everywhere" in said
    assert "worker1: both tensors on worker0 decreased by 0.05 everywhere" in said


@pytest.mark.timeout(600)
def test_notebook(tmp_path):
    """Its cells run one after the other; a notebook server would add nothing to that."""
    notebook = json.loads((EXAMPLES / "notebook" / "tour.ipynb").read_text())
    cells = ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]
    (tmp_path / "tour.py").write_text("\n\n".join(cells) + "\n")

    assert "loss 0." in run("tour.py", cwd=tmp_path)
    assert all(not c["outputs"] for c in notebook["cells"] if c["cell_type"] == "code")

"""A job over files that stops half-way and resumes from its checkpoint with the same bits."""

from pathlib import Path

import pytest

import gradmesh as gm

SAMPLE = Path(__file__).resolve().parents[2] / "examples" / "criteo_dlrm" / "sample.txt"
EXACT = ("auc", "log_loss", "samples", "dense_crc32")


def train(folder, steps, trainers=2, servers=2, **options):
    job = {
        "data": {
            "format": "criteo",
            "train": [str(SAMPLE)],
            "holdout": 0.2,
            "rows": [300],
            "readers": 1,
        },
        "model": {"dim": 4, "bottom": [8], "top": [16]},
        "job": {
            "steps": steps,
            "batch_size": 30,
            "optimizer": "adagrad",
            "learning_rate": 0.05,
            "schedule": "constant",
            "table_optimizer": "adagrad",
            "table_learning_rate": 0.1,
            "eval_batches": 0,
            "log_every": 4,
            "checkpoint_path": str(folder),
            **options,
        },
    }
    return gm.train(job, trainers=trainers, parameter_servers=servers).figures


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_resumed_job_ends_with_the_same_bits(tmp_path):
    whole = train(tmp_path / "whole", 22)

    train(tmp_path / "half", 11)
    resumed = train(tmp_path / "half", 22, servers=3, resume="auto")

    assert {name: resumed[name] for name in EXACT} == {name: whole[name] for name in EXACT}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_job_resumes_with_another_number_of_trainers(tmp_path):
    train(tmp_path, 11)

    resumed = train(tmp_path, 20, trainers=1, resume="auto")

    assert resumed["samples"] == 30 * (2 * 11 + 9)
    assert resumed["auc"] > 0.5

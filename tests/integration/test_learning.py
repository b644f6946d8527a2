"""Models come close to the best possible AUC, on data where it is known."""

import pytest

import gradmesh as gm

JOB = {
    "data": {"rows": [50, 30, 20, 10], "dense_features": 6},
    "job": {
        "steps": 900,
        "batch_size": 512,
        "eval_batches": 200,
    },
    "model": {"dim": 8},
}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_auc_comes_within_a_hundredth_of_the_best_and_staleness_costs_little():
    figures = gm.train(JOB, trainers=2, parameter_servers=2).figures
    loose = {**JOB, "job": {**JOB["job"], "staleness": 4}}
    stale = gm.train(loose, trainers=2, parameter_servers=2).figures

    assert figures["samples"] == 2 * 900 * 512
    assert figures["best_auc"] - 0.01 < figures["auc"] <= figures["best_auc"] + 0.002
    assert abs(figures["calibration"] - 1) < 0.1
    assert abs(stale["auc"] - figures["auc"]) < 0.003

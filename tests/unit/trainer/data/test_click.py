import dataclasses
import time

import numpy as np
import pytest

from gradmesh.trainer.data import ClickData, ClickSpec
from gradmesh.trainer.metrics import auc, calibration

SPEC = ClickSpec(rows=(100, 2000, 7), dense_features=3)


@pytest.fixture(scope="module")
def data():
    return ClickData(SPEC)


def same(first, second):
    return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_batch_has_the_promised_shapes(data):
    batch = data.batch("train", 0, 64)

    assert batch.dense.shape == (64, 3)
    assert batch.ids.shape == (64, 3)
    assert batch.labels.shape == batch.best.shape == (64,)
    kinds = [array.dtype for array in batch]
    assert kinds == [np.float32, np.int64, np.float32, np.float32]
    assert (batch.ids.max(axis=0) < SPEC.rows).all()
    assert set(batch.labels.tolist()) <= {0.0, 1.0}


def test_batches_are_random_access_and_repeatable(data):
    in_order = [data.batch("train", index, 32) for index in range(5)]

    fresh = ClickData(SPEC)

    assert same(fresh.batch("train", 4, 32), in_order[4])
    assert same(fresh.batch("train", 1, 32), in_order[1])


def test_batches_splits_and_seeds_differ(data):
    other = ClickData(dataclasses.replace(SPEC, seed=1))
    dense = [
        data.batch("train", 0, 32).dense,
        data.batch("train", 1, 32).dense,
        data.batch("train", 2**40, 32).dense,
        data.batch("validation", 0, 32).dense,
        data.batch("test", 0, 32).dense,
        other.batch("train", 0, 32).dense,
    ]

    assert len({array.tobytes() for array in dense}) == len(dense)


def test_batches_do_not_overlap_however_big(data):
    big = data.batch("train", 0, 20_000).dense
    following = data.batch("train", 1, 20_000).dense

    assert not np.isin(following[:, 0], big[:1000, 0]).all()
    assert abs(np.corrcoef(big[:, 0], following[:, 0])[0, 1]) < 0.05


def test_base_rate_and_best_probability_are_true(data):
    batch = data.batch("test", 0, 200_000)

    assert abs(batch.labels.mean() - SPEC.base_rate) < 0.01
    assert abs(calibration(batch.labels, batch.best) - 1) < 0.02
    for low in np.arange(0.0, 0.9, 0.1):
        inside = (batch.best >= low) & (batch.best < low + 0.1)
        gap = batch.labels[inside].mean() - batch.best[inside].mean()
        assert abs(gap) < 4 * np.sqrt(0.25 / inside.sum())


def test_default_teacher_allows_an_auc_near_eight_tenths():
    batch = ClickData(ClickSpec()).batch("test", 0, 100_000)

    assert 0.79 < auc(batch.labels, batch.best) < 0.82


def test_single_features_do_not_explain_the_labels(data):
    batch = data.batch("test", 0, 100_000)
    effect, _, linear = data._teacher._parts(batch.dense, batch.ids)

    alone = auc(batch.labels, effect + linear)

    assert alone < auc(batch.labels, batch.best) - 0.01


def test_with_tables_of_one_row_other_features_carry_the_signal():
    batch = ClickData(ClickSpec(rows=(1, 1), dense_features=2)).batch("test", 0, 50_000)

    assert np.isfinite(batch.best).all()
    assert abs(batch.labels.mean() - 0.25) < 0.02
    assert auc(batch.labels, batch.best) > 0.6


def test_empty_batch_is_fine(data):
    assert data.batch("train", 0, 0).ids.shape == (0, 3)


@pytest.mark.parametrize(
    ("split", "index", "size"), [("holdout", 0, 1), ("train", -1, 1), ("train", 0, -1)]
)
def test_bad_request_is_refused(data, split, index, size):
    with pytest.raises(ValueError, match=r"split|negative"):
        data.batch(split, index, size)


def test_all_problems_of_a_spec_are_reported_together():
    with pytest.raises(ValueError, match=r"rows must be .*base_rate must be"):
        ClickSpec(rows=(), base_rate=1.5)


def test_generation_is_quick():
    data = ClickData(ClickSpec())
    best = np.inf
    for index in range(20):
        started = time.thread_time()  # processor time, without other processes
        data.batch("train", index, 2048)
        best = min(best, time.thread_time() - started)

    assert 2048 / best > 500_000
